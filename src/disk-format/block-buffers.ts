/**
 * Lends the buffers in which a flush packs batches of blocks. Packing is in place: the frames (the stored form of
 * blocks) overwrite the blocks. Buffers are reused, because a new megabyte costs 256 page faults, which take longer
 * than hashing and encrypting it.
 */
import { release } from '../shared/release.ts';
import { TAG_BYTES } from './frame-cipher.ts';
import { BLOCK_BYTES } from './segment-format.ts';

/** Free buffers kept even when memory is short. */
const KEPT = 8;

/**
 * A zeroed buffer for `count` blocks, with space for their tags in front. So a frame that did not shrink ends before the
 * next block begins.
 */
export function newBlocks(count: number): Uint8Array<ArrayBuffer> {
  const lead = count * TAG_BYTES;
  return new Uint8Array(new ArrayBuffer(lead + count * BLOCK_BYTES), lead);
}

/** Buffers of one size, for one flush. */
export class BlockBuffers {
  readonly #count: number;
  readonly #roomBytes: () => number;
  readonly #free: ArrayBuffer[] = [];
  #closed = false;

  /** `roomBytes` returns how many more bytes the flush may use. Free buffers are kept up to that many bytes. */
  constructor(count: number, roomBytes: () => number = () => 0) {
    this.#count = count;
    this.#roomBytes = roomBytes;
  }

  /** A buffer for a batch of blocks, with arbitrary content. */
  take(): Uint8Array<ArrayBuffer> {
    const buffer = this.#free.pop();
    this.#trim();
    return buffer ? new Uint8Array(buffer, this.#count * TAG_BYTES) : newBlocks(this.#count);
  }

  /** Takes back the buffer behind `bytes`. The caller must not use any part of it afterwards. */
  give(bytes: Uint8Array): void {
    const { buffer } = bytes;
    const ours = buffer instanceof ArrayBuffer && buffer.byteLength === this.#bufferBytes;
    if (ours && !this.#closed) this.#free.push(buffer);
    else release(bytes);
    this.#trim();
  }

  /** Releases all buffers. Buffers given back later are released at once. */
  close(): void {
    this.#closed = true;
    for (const buffer of this.#free.splice(0)) release(new Uint8Array(buffer));
  }

  #trim(): void {
    const most = Math.max(KEPT, Math.floor(this.#roomBytes() / this.#bufferBytes));
    for (const buffer of this.#free.splice(most)) release(new Uint8Array(buffer));
  }

  get #bufferBytes(): number {
    return this.#count * (BLOCK_BYTES + TAG_BYTES);
  }
}
