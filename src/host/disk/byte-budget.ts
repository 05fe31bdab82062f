/**
 * `ByteBudget` limits the bytes that are held at once, and grants requests in their order. A request above the limit is
 * granted when nothing else is held, so none waits for ever. `PayloadBuffers` and `BatchRooms` reuse the buffers of NBD
 * payloads and of a flush's batches.
 */
import type { BlockBuffers } from '../../disk-format/block-buffers.ts';
import { assert } from '../../shared/assert.ts';
import { release } from '../../shared/release.ts';
import type { PayloadRooms } from './nbd-protocol.ts';

interface Waiter {
  readonly bytes: number;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

export class ByteBudget {
  readonly limit_bytes: number;
  #used = 0;
  #failure: { readonly cause: unknown } | undefined;
  readonly #waiters: Waiter[] = [];

  constructor(limit_bytes: number) {
    assert(limit_bytes > 0, 'a budget has room');
    this.limit_bytes = limit_bytes;
  }

  get used_bytes(): number {
    return this.#used;
  }

  get waiting(): boolean {
    return this.#waiters.length > 0;
  }

  /** Takes `bytes` and returns true, unless there is no space or another caller waits. */
  tryTake(bytes: number): boolean {
    if (this.#failure || this.#waiters.length > 0 || !this.#fits(bytes)) return false;
    this.#used += bytes;
    return true;
  }

  /** Waits for space for `bytes`. Rejects with the cause given to {@link fail}. */
  take(bytes: number): Promise<void> {
    if (this.#failure) return Promise.reject(this.#failure.cause);
    if (this.tryTake(bytes)) return Promise.resolve();
    return new Promise((resolve, reject) => this.#waiters.push({ bytes, resolve, reject }));
  }

  give(bytes: number): void {
    this.#used -= bytes;
    assert(this.#used >= 0, 'no more bytes are returned than were taken');
    for (let first = this.#waiters[0]; first && this.#fits(first.bytes); first = this.#waiters[0]) {
      this.#waiters.shift();
      this.#used += first.bytes;
      first.resolve();
    }
  }

  /** Rejects all waiting and later calls. */
  fail(cause: unknown): void {
    this.#failure ??= { cause };
    for (const waiter of this.#waiters.splice(0)) waiter.reject(cause);
  }

  #fits(bytes: number): boolean {
    return this.#used === 0 || this.#used + bytes <= this.limit_bytes;
  }
}

/** Smaller buffers are not kept: they come from memory that the process has. */
const KEEP_MIN_BYTES = 128 * 1024;

/**
 * Reuses the payload buffers of one connection for payloads of the same length. New memory costs a page fault each 4 KiB,
 * which takes longer than copying into it. QEMU's backup mostly sends 1 MiB at a time.
 */
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

/**
 * Lends the buffers of a flush's batches, so that the NBD server reads payloads straight into them. A payload that is a
 * whole batch is then packed in place, without a copy.
 */
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
