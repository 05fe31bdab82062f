/** A caller who waits for the VM. What is sent meanwhile is kept, up to a bound; past that the kernel holds it back. */
import type { Socket } from 'node:net';

export class HeldSocket {
  readonly socket: Socket;
  readonly #parts: Buffer[] = [];
  #bytes = 0;
  readonly #timer: NodeJS.Timeout;
  readonly #hear: (part: Buffer) => void;
  readonly #leave: () => void;

  /** `gone` is called when the caller has hung up, or the time is over. */
  constructor(socket: Socket, limits: { held_bytes: number; held_ms: number }, gone: () => void) {
    this.socket = socket;
    this.#timer = setTimeout(gone, limits.held_ms);
    this.#hear = (part) => {
      this.#parts.push(part);
      this.#bytes += part.length;
      if (this.#bytes >= limits.held_bytes) socket.pause();
    };
    this.#leave = gone;
    // The end of its sending too: nobody who wants a session has said all before hearing a word.
    socket.once('end', this.#leave).once('close', this.#leave);
    // Reading is also how a caller's leaving is noticed.
    socket.on('data', this.#hear).resume();
  }

  /** Stops waiting; the socket is as if nothing had been read from it yet. */
  release(): Socket {
    const { socket } = this;
    clearTimeout(this.#timer);
    socket.off('data', this.#hear).off('end', this.#leave).off('close', this.#leave);
    socket.pause();
    if (this.#bytes > 0) socket.unshift(Buffer.concat(this.#parts));
    return socket;
  }

  drop(): void {
    clearTimeout(this.#timer);
    this.socket.off('end', this.#leave).off('close', this.#leave);
    this.socket.destroy();
  }
}
