/**
 * Exact reads from a socket with bounded buffering: the socket is paused while no read is pending, which gives backpressure.
 * Large reads are filled directly. The socket's chunks are released as soon as they are used up.
 */
import type { Socket } from 'node:net';
import { assert } from '../../shared/assert.ts';
import { release } from '../../shared/release.ts';

const HIGH_WATER_BYTES = 256 * 1024;

interface Wanted {
  readonly into: Buffer;
  filled: number;
  readonly resolve: (bytes: Buffer | undefined) => void;
}

export class SocketReader {
  readonly #socket: Socket;
  readonly #chunks: Buffer[] = [];
  #buffered = 0;
  #wanted: Wanted | undefined;
  #ended = false;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('data', (chunk: Buffer) => this.#push(chunk));
    for (const event of ['end', 'close', 'error'] as const) socket.on(event, () => this.stop());
  }

  /** Reads `length` bytes. Undefined when the stream ends first. One read at a time. */
  read(length: number): Promise<Buffer | undefined> {
    return this.fill(Buffer.allocUnsafe(length));
  }

  /** Fills `into` and returns it. Undefined when the stream ends first. One read at a time. */
  fill(into: Buffer): Promise<Buffer | undefined> {
    assert(!this.#wanted, 'one read at a time');
    const { length } = into;
    let filled = 0;
    while (filled < length) {
      const chunk = this.#chunks.shift();
      if (!chunk) break;
      const used = chunk.copy(into, filled, 0, length - filled);
      if (used < chunk.length) this.#chunks.unshift(chunk.subarray(used));
      else release(chunk);
      this.#buffered -= used;
      filled += used;
    }
    if (filled === length) return Promise.resolve(into);
    if (this.#ended) return Promise.resolve(undefined);
    return new Promise((resolve) => {
      this.#wanted = { into, filled, resolve };
      this.#socket.resume();
    });
  }

  /** Ends reading: the pending read, and later ones that the buffer cannot satisfy, return undefined. */
  stop(): void {
    this.#ended = true;
    const wanted = this.#wanted;
    this.#wanted = undefined;
    wanted?.resolve(undefined);
  }

  #push(chunk: Buffer): void {
    let rest = chunk;
    const wanted = this.#wanted;
    if (wanted) {
      const used = chunk.copy(wanted.into, wanted.filled);
      wanted.filled += used;
      rest = chunk.subarray(used);
      if (wanted.filled === wanted.into.length) {
        this.#wanted = undefined;
        wanted.resolve(wanted.into);
      }
    }
    if (rest.length === 0) {
      release(chunk);
      return;
    }
    this.#chunks.push(rest);
    this.#buffered += rest.length;
    if (this.#buffered >= HIGH_WATER_BYTES) this.#socket.pause();
  }
}
