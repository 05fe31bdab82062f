/**
 * Lends the buffers of a flush's batches, so that the NBD server reads payloads straight into them. A payload that is a
 * whole batch is then packed in place, without a copy.
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

  /** Whether the payload is in a lent buffer. */
  has({ buffer }: Buffer): boolean {
    return this.#lent.has(buffer);
  }

  /** Transfers the payload's buffer to the caller. */
  keep({ buffer, byteOffset, length }: Buffer): Uint8Array<ArrayBuffer> {
    this.#lent.delete(buffer);
    return new Uint8Array(buffer as ArrayBuffer, byteOffset, length);
  }
}
