/**
 * Reuses the payload buffers of one connection for payloads of the same length. New memory costs a page fault each 4 KiB,
 * which takes longer than copying into it. QEMU's backup mostly sends 1 MiB at a time.
 */
import { release } from '../../shared/release.ts';

/** Smaller buffers are not kept: they come from memory that the process has. */
const KEEP_MIN_BYTES = 128 * 1024;

export class PayloadBuffers {
  readonly #limit_bytes: number;
  readonly #kept: Buffer[] = [];
  #kept_bytes = 0;

  constructor(limit_bytes: number) {
    this.#limit_bytes = limit_bytes;
  }

  /** A buffer with arbitrary content. */
  take(length: number): Buffer {
    const found = this.#kept.findIndex((payload) => payload.length === length);
    const [again] = found < 0 ? [] : this.#kept.splice(found, 1);
    if (again) this.#kept_bytes -= length;
    return again ?? Buffer.allocUnsafe(length);
  }

  /** Takes a buffer back. The caller must not use it afterwards. */
  give(payload: Buffer): void {
    if (payload.length >= KEEP_MIN_BYTES) {
      this.#kept.push(payload);
      this.#kept_bytes += payload.length;
    } else release(payload);
  }

  /** Releases the oldest buffers until kept and held bytes fit below the limit. */
  keepWithin(held_bytes: number): void {
    while (this.#kept_bytes + held_bytes > this.#limit_bytes) {
      const oldest = this.#kept.shift();
      if (!oldest) return;
      this.#kept_bytes -= oldest.length;
      release(oldest);
    }
  }

  /** Releases all buffers. */
  close(): void {
    this.keepWithin(Number.POSITIVE_INFINITY);
  }
}
