/**
 * Owns the worker threads that pack and unpack batches of blocks, so that the main thread never waits for SHA-256 or
 * zstd.
 *
 * Invariants:
 * - A batch goes to one worker and gets one reply. Its buffers are transferred, so the caller can no longer use them.
 * - When a worker dies, its batches are rejected. Only the next batch starts a new worker, so a worker that cannot
 *   start causes no loop.
 * - Idle workers do not keep the process alive.
 */
import { extname } from 'node:path';
import { Worker } from 'node:worker_threads';
import { assert } from '../shared/assert.ts';
import type { FrameHome } from './frame-cipher.ts';
import { BLOCK_BYTES, type FrameKind, HASH_BYTES } from './segment-format.ts';

/** In {@link PackedBatch.kinds}: the block's hash was known, so it has no frame. */
export const UNCHANGED = 255;

type Bytes = Uint8Array<ArrayBuffer>;

/** Encrypts compressed frames, and authenticates to which disk, generation and block each belongs. */
export interface Sealing {
  /** The attempt's key, not the data key. */
  readonly key: Uint8Array;
  readonly home: FrameHome;
  /** One number for each block. */
  readonly numbers: Uint32Array;
}

/** Whole blocks in a buffer of `newBlocks`. A block is packed unless its hash is the known one (if `known_present` is 1). */
export interface PackTask {
  readonly blocks: Bytes;
  readonly known: Bytes;
  readonly known_present: Bytes;
  /** Each block uses up one nonce counter, from `first_counter` on, even when it makes no frame. */
  readonly sealing?: (Sealing & { readonly first_counter: number }) | undefined;
}

/** One item per block, in order. */
export interface PackedBatch {
  /** A {@link FrameKind} or {@link UNCHANGED}. */
  readonly kinds: Bytes;
  readonly stored_bytes: Uint32Array<ArrayBuffer>;
  /** The nonce counter or the CRC, as in a directory's entry. */
  readonly marks: Uint32Array<ArrayBuffer>;
  readonly hashes: Bytes;
  /** The stored bytes of all frames, concatenated. */
  readonly frames: Bytes;
  /** The blocks' buffer, if the frames are in another one. */
  readonly spare: Bytes | null;
}

/** Frames as a segment stores them, concatenated. */
export interface UnpackTask {
  readonly frames: Bytes;
  readonly kinds: readonly FrameKind[];
  readonly stored_bytes: readonly number[];
  readonly hashes: Bytes;
  readonly sealing?: (Sealing & { readonly marks: Uint32Array }) | undefined;
}

/** The blocks; or which frame is corrupt, and how. Corrupt data is never returned. */
export type Unpacked =
  | { readonly ok: true; readonly blocks: Bytes }
  | { readonly ok: false; readonly index: number; readonly problem: string };

export type WorkerRequest = { readonly id: number } & (
  | { readonly op: 'pack'; readonly task: PackTask }
  | { readonly op: 'unpack'; readonly task: UnpackTask }
);
export type WorkerReply = { readonly id: number } & (
  | { readonly result: PackedBatch | Unpacked }
  | { readonly error: string }
);

/** A worker thread died; its batches were not done. */
export class CompressWorkerError extends Error {
  override name = 'CompressWorkerError';
}

interface Pending {
  readonly request: WorkerRequest;
  readonly transfer: ArrayBuffer[];
  readonly resolve: (result: PackedBatch | Unpacked) => void;
  readonly reject: (error: Error) => void;
}

interface Slot {
  worker: Worker | undefined;
  readonly pending: Map<number, Pending>;
}

/** Batches given to a worker at once: one to work on, one waiting. */
const BATCHES_PER_WORKER = 2;
/** Has this file's extension, because a package holds JavaScript. */
const DEFAULT_WORKER = new URL(`./compress-worker${extname(import.meta.filename)}`, import.meta.url);

export interface CompressPoolOptions {
  /** Number of threads, 2 by default. They start when first needed. */
  readonly workers?: number;
  /** Another worker program, for tests. */
  readonly worker_url?: URL;
}

export class CompressPool {
  readonly #slots: readonly Slot[];
  readonly #workerUrl: URL;
  readonly #queue: Pending[] = [];
  #nextId = 1;
  #closed = false;

  constructor({ workers = 2, worker_url = DEFAULT_WORKER }: CompressPoolOptions = {}) {
    assert(workers >= 1 && workers <= 64, 'a pool has 1 to 64 workers');
    this.#slots = Array.from({ length: workers }, () => ({ worker: undefined, pending: new Map() }));
    this.#workerUrl = worker_url;
  }

  /** Packs whole blocks. Detaches the task's buffers. @throws CompressWorkerError */
  async pack(task: PackTask): Promise<PackedBatch> {
    const count = task.blocks.length / BLOCK_BYTES;
    assert(Number.isInteger(count), 'a batch has whole blocks');
    assert(task.known.length === count * HASH_BYTES && task.known_present.length === count, 'a hash a block');
    const transfer = [task.blocks.buffer, task.known.buffer, task.known_present.buffer];
    const result = await this.#submit({ id: this.#nextId++, op: 'pack', task }, transfer);
    assert('kinds' in result, 'a pack is answered by a packed batch');
    return result;
  }

  /** Unpacks and verifies frames. Detaches the task's buffers. @throws CompressWorkerError */
  async unpack(task: UnpackTask): Promise<Unpacked> {
    const transfer = [task.frames.buffer, task.hashes.buffer];
    const result = await this.#submit({ id: this.#nextId++, op: 'unpack', task }, transfer);
    assert('ok' in result, 'an unpack is answered by blocks');
    return result;
  }

  /** Ends all workers and rejects their batches. */
  async close(): Promise<void> {
    this.#closed = true;
    const gone = new CompressWorkerError('the compression pool was closed');
    for (const batch of this.#queue.splice(0)) batch.reject(gone);
    await Promise.all(
      this.#slots.map(async (slot) => {
        const { worker } = slot;
        this.#retire(slot, gone);
        await worker?.terminate();
      }),
    );
  }

  #submit(request: WorkerRequest, transfer: ArrayBuffer[]): Promise<PackedBatch | Unpacked> {
    if (this.#closed) return Promise.reject(new CompressWorkerError('the compression pool is closed'));
    return new Promise((resolve, reject) => {
      this.#queue.push({ request, transfer, resolve, reject });
      this.#dispatch();
    });
  }

  #dispatch(): void {
    while (this.#queue.length > 0) {
      const slot = this.#slots.reduce((a, b) => (b.pending.size < a.pending.size ? b : a));
      if (slot.pending.size >= BATCHES_PER_WORKER) return;
      const batch = this.#queue.shift();
      if (!batch) return;
      slot.worker ??= this.#start(slot);
      if (slot.pending.size === 0) slot.worker.ref();
      slot.pending.set(batch.request.id, batch);
      slot.worker.postMessage(batch.request, batch.transfer);
    }
  }

  #start(slot: Slot): Worker {
    const worker = new Worker(this.#workerUrl);
    const died = (why: string): void => {
      if (slot.worker !== worker) return;
      this.#retire(slot, new CompressWorkerError(`a compression worker died: ${why}`));
      this.#dispatch();
    };
    worker.on('message', (reply: WorkerReply) => this.#settle(slot, reply));
    worker.on('error', (error) => died(String(error)));
    worker.on('messageerror', (error) => died(String(error)));
    worker.on('exit', (code) => died(`exit code ${code}`));
    return worker;
  }

  #retire(slot: Slot, error: CompressWorkerError): void {
    slot.worker = undefined;
    const lost = [...slot.pending.values()];
    slot.pending.clear();
    for (const batch of lost) batch.reject(error);
  }

  #settle(slot: Slot, reply: WorkerReply): void {
    const batch = slot.pending.get(reply.id);
    if (!batch) return;
    slot.pending.delete(reply.id);
    if (slot.pending.size === 0) slot.worker?.unref();
    if ('error' in reply) batch.reject(new CompressWorkerError(reply.error));
    else batch.resolve(reply.result);
    this.#dispatch();
  }
}
