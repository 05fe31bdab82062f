/** A connection that waits for its VM. It buffers what the client sends, up to a bound; beyond that TCP pushes back. */
import type { Socket } from 'node:net';

export class HeldSocket {
  readonly socket: Socket;
  readonly #parts: Buffer[] = [];
  #bytes = 0;
  readonly #timer: NodeJS.Timeout;
  readonly #buffer: (part: Buffer) => void;
  readonly #gone: () => void;

  /** Calls `gone` when the client disconnects, or the time limit has passed. */
  constructor(socket: Socket, limits: { held_bytes: number; held_ms: number }, gone: () => void) {
    this.socket = socket;
    this.#timer = setTimeout(gone, limits.held_ms);
    this.#buffer = (part) => {
      this.#parts.push(part);
      this.#bytes += part.length;
      if (this.#bytes >= limits.held_bytes) socket.pause();
    };
    this.#gone = gone;
    // An end of sending too: no SSH client ends its stream before the server's first line.
    socket.once('end', this.#gone).once('close', this.#gone);
    // Only a reading socket notices that the client disconnects.
    socket.on('data', this.#buffer).resume();
  }

  /** Stops waiting, and puts the buffered bytes back into the socket. */
  release(): Socket {
    const { socket } = this;
    clearTimeout(this.#timer);
    socket.off('data', this.#buffer).off('end', this.#gone).off('close', this.#gone);
    socket.pause();
    if (this.#bytes > 0) socket.unshift(Buffer.concat(this.#parts));
    return socket;
  }

  drop(): void {
    clearTimeout(this.#timer);
    this.socket.off('end', this.#gone).off('close', this.#gone);
    this.socket.destroy();
  }
}
