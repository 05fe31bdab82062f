/** A signal within this process: whoever is to look again is called when there may be something new. */
import { EventEmitter } from 'node:events';

export class Wake {
  readonly #emitter = new EventEmitter().setMaxListeners(0);

  /** Calls everybody. One function, so that what is to be called after a commit can be told to be the same. */
  readonly all = (): void => void this.#emitter.emit('wake');

  /** Calls `wake` from now on. Returns the undoing. */
  readonly on = (wake: () => void): (() => void) => {
    this.#emitter.on('wake', wake);
    return () => this.#emitter.off('wake', wake);
  };
}
