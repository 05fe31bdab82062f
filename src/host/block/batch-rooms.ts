/**
 * Memory of a flush's batches, lent for payloads to be read into: one that is a whole batch is packed where it came to lie,
 * and not copied before.
 */
import type { BlockBuffers } from '../../disk-format/block-buffers.ts';
import type { PayloadRooms } from './nbd-export.ts';

export class BatchRooms implements PayloadRooms {
  readonly #buffers: BlockBuffers;
  readonly #batch_bytes: number;
  readonly #lent = new Set<ArrayBufferLike>();

  constructor(buffers: BlockBuffers, batch_bytes: number) {
    this.#buffers = buffers;
    this.#batch_bytes = batch_bytes;
  }

  take(length: number): Buffer | undefined {
    if (length !== this.#batch_bytes) return undefined;
    const { buffer, byteOffset } = this.#buffers.take();
    this.#lent.add(buffer);
    return Buffer.from(buffer, byteOffset, length);
  }

  give({ buffer, byteOffset, length }: Buffer): void {
    if (this.#lent.delete(buffer)) this.#buffers.give(new Uint8Array(buffer, byteOffset, length));
  }

  /** Whether the payload lies in a room. */
  has({ buffer }: Buffer): boolean {
    return this.#lent.has(buffer);
  }

  /** The payload's blocks, in a buffer that is the caller's from now on. */
  keep({ buffer, byteOffset, length }: Buffer): Uint8Array<ArrayBuffer> {
    this.#lent.delete(buffer);
    return new Uint8Array(buffer as ArrayBuffer, byteOffset, length);
  }
}
