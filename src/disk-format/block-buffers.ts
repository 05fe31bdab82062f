/**
 * Memory of batches of blocks on their way to being packed. The frames of a batch take the place of its blocks, and what
 * is done with serves the next batch: a new megabyte costs the system 256 page faults, which is more than hash and cipher
 * take for it.
 */
import { release } from '../lib/release.ts';
import { TAG_BYTES } from './frame-cipher.ts';
import { BLOCK_BYTES } from './segment-format.ts';

/** Kept for the next batches, whatever else there is. */
const KEPT = 8;

/**
 * Room for `count` blocks, zeroed, behind as many bytes as tags add to them: a frame that did not shrink then ends before
 * the block after its own begins.
 */
export function newBlocks(count: number): Uint8Array<ArrayBuffer> {
  const lead = count * TAG_BYTES;
  return new Uint8Array(new ArrayBuffer(lead + count * BLOCK_BYTES), lead);
}

/** Of batches of one size, for one flush. */
export class BlockBuffers {
  readonly #count: number;
  readonly #roomBytes: () => number;
  readonly #free: ArrayBuffer[] = [];
  #closed = false;

  /** `roomBytes`: how much memory the flush may take still, beside what it holds in blocks and frames; as much is kept. */
  constructor(count: number, roomBytes: () => number = () => 0) {
    this.#count = count;
    this.#roomBytes = roomBytes;
  }

  /** Room for the blocks of a batch. What is in it is anything. */
  take(): Uint8Array<ArrayBuffer> {
    const buffer = this.#free.pop();
    this.#trim();
    return buffer ? new Uint8Array(buffer, this.#count * TAG_BYTES) : newBlocks(this.#count);
  }

  /** Takes back what lies behind `bytes`, all of it, which nobody may look at any more; or whatever else is done with. */
  give(bytes: Uint8Array): void {
    const { buffer } = bytes;
    const ours = buffer instanceof ArrayBuffer && buffer.byteLength === this.#bufferBytes;
    if (ours && !this.#closed) this.#free.push(buffer);
    else release(bytes);
    this.#trim();
  }

  /** Gives all memory back; what is given from now on goes at once. */
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
