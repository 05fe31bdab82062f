/**
 * Memory of the payloads that one connection reads, used again for the next of the same length: new memory is a page fault
 * each 4 KiB, which is more than to copy into it. QEMU's backup mostly sends a MiB at a time.
 */
import { release } from '../../lib/release.ts';

/** Not worth keeping: smaller ones come from memory that the process has. */
const KEEP_MIN_BYTES = 128 * 1024;

export class PayloadBuffers {
  readonly #limit_bytes: number;
  readonly #kept: Buffer[] = [];
  #kept_bytes = 0;

  constructor(limit_bytes: number) {
    this.#limit_bytes = limit_bytes;
  }

  /** What is in it is anything. */
  take(length: number): Buffer {
    const found = this.#kept.findIndex((payload) => payload.length === length);
    const [again] = found < 0 ? [] : this.#kept.splice(found, 1);
    if (again) this.#kept_bytes -= length;
    return again ?? Buffer.allocUnsafe(length);
  }

  /** Nobody may look at it any more. */
  give(payload: Buffer): void {
    if (payload.length >= KEEP_MIN_BYTES) {
      this.#kept.push(payload);
      this.#kept_bytes += payload.length;
    } else release(payload);
  }

  /** Lets go of the oldest until what requests hold fits beside the rest below the limit. */
  keepWithin(held_bytes: number): void {
    while (this.#kept_bytes + held_bytes > this.#limit_bytes) {
      const oldest = this.#kept.shift();
      if (!oldest) return;
      this.#kept_bytes -= oldest.length;
      release(oldest);
    }
  }

  /** Gives all memory back. */
  close(): void {
    this.keepWithin(Number.POSITIVE_INFINITY);
  }
}
