/**
 * Writes all blocks of a map to a disk behind NBD. Each block is verified first, so nothing corrupt is ever written.
 * Reads, unpacking and writes overlap; at most `concurrency` runs of up to 4 MiB are in memory.
 *
 * Blocks that the map does not have are not written: the target must already read as the base image there.
 */

import type { BlockMap } from '../../src/disk-format/block-map.ts';
import type { CompressPool } from '../../src/disk-format/compress-pool.ts';
import type { KeyRing } from '../../src/disk-format/frame-cipher.ts';
import { coalesce, type FrameRun, readRun } from '../../src/disk-format/read-run.ts';
import { BLOCK_BYTES, FRAME_KIND } from '../../src/disk-format/segment-format.ts';
import type { NbdClient } from '../../src/host/disk/nbd-client.ts';
import type { ObjectStore } from '../../src/object-store/object-store.ts';
import { assert } from '../../src/shared/assert.ts';

export interface RestoreProgress {
  readonly done_blocks: number;
  readonly total_blocks: number;
  /** Bytes fetched from the store. */
  readonly fetched_bytes: number;
}

export interface RestoreDiskOptions {
  readonly store: ObjectStore;
  readonly map: BlockMap;
  /** The disk's keys; none if nothing is encrypted. */
  readonly keys?: KeyRing | undefined;
  readonly target: Pick<NbdClient, 'size_bytes' | 'write' | 'writeZeroes' | 'flush'>;
  /** Maximum number of concurrent runs. Default: 8. */
  readonly concurrency?: number;
  /** Unpacks in worker threads; on the calling thread when absent. */
  readonly pool?: CompressPool;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: RestoreProgress) => void;
}

interface ZeroRange {
  readonly first: number;
  readonly count: number;
}

/**
 * Restores and flushes the target.
 * @throws SegmentCorruptError naming segment and block; NbdError when the target fails; the signal's reason.
 *   The target is incomplete then, but holds nothing corrupt.
 */
export async function restoreDisk(options: RestoreDiskOptions): Promise<RestoreProgress> {
  const { map, target, concurrency = 8, signal, onProgress } = options;
  assert(concurrency >= 1, 'at least one run at a time');
  const stop = new AbortController();
  const aborted = signal ? AbortSignal.any([signal, stop.signal]) : stop.signal;
  let progress: RestoreProgress = { done_blocks: 0, total_blocks: map.count, fetched_bytes: 0 };
  const advance = (blocks: number, fetched_bytes: number): void => {
    progress = {
      ...progress,
      done_blocks: progress.done_blocks + blocks,
      fetched_bytes: progress.fetched_bytes + fetched_bytes,
    };
    onProgress?.(progress);
  };
  const work = restoreSteps(options, aborted, advance);
  const worker = async (): Promise<void> => {
    for (const step of work) {
      aborted.throwIfAborted();
      await step();
    }
  };
  try {
    const workers = Array.from({ length: concurrency }, () => worker());
    await firstFailure(workers, (cause) => stop.abort(cause));
    await target.flush();
  } finally {
    work.return(undefined);
  }
  return progress;
}

/** The pieces of work. Several workers share this generator. */
function* restoreSteps(
  { store, map, keys, pool, target }: RestoreDiskOptions,
  signal: AbortSignal,
  advance: (blocks: number, fetched_bytes: number) => void,
): Generator<() => Promise<void>> {
  for (const run of coalesce(map.inSegmentOrder())) {
    yield async () => {
      const blocks = await readRun(run, { store, keys, pool, signal });
      signal.throwIfAborted();
      await writeRun(run, blocks, target);
      advance(run.frames.length, run.length);
    };
  }
  for (const { first, count } of zeroRanges(map)) {
    yield async () => {
      const { offset, length } = clip(first, count, target.size_bytes);
      await target.writeZeroes(offset, length);
      advance(count, 0);
    };
  }
}

/** Writes the blocks of a run, adjacent ones together. */
async function writeRun(
  { frames }: FrameRun,
  blocks: Buffer,
  target: RestoreDiskOptions['target'],
): Promise<void> {
  const writes: Promise<void>[] = [];
  let start = 0;
  for (let i = 1; i <= frames.length; i++) {
    const first = frames[start];
    if (!first || frames[i]?.block === first.block + (i - start)) continue;
    const { offset, length } = clip(first.block, i - start, target.size_bytes);
    writes.push(target.write(offset, blocks.subarray(start * BLOCK_BYTES, start * BLOCK_BYTES + length)));
    start = i;
  }
  await Promise.all(writes);
}

function* zeroRanges(map: BlockMap): Generator<ZeroRange> {
  let first = -1;
  let count = 0;
  for (const { block, kind } of map.inBlockOrder()) {
    if (kind !== FRAME_KIND.zero) continue;
    if (count > 0 && block === first + count) {
      count += 1;
      continue;
    }
    if (count > 0) yield { first, count };
    first = block;
    count = 1;
  }
  if (count > 0) yield { first, count };
}

/** The byte range of blocks; the disk's last block may be partial. */
function clip(first: number, count: number, size_bytes: number): { offset: number; length: number } {
  const offset = first * BLOCK_BYTES;
  const length = Math.min(count * BLOCK_BYTES, size_bytes - offset);
  assert(length > (count - 1) * BLOCK_BYTES, 'the target is as large as the disk');
  return { offset, length };
}

/** Waits for all. The first failure stops the others and is thrown at the end. */
async function firstFailure(
  tasks: readonly Promise<void>[],
  onFailure: (cause: unknown) => void,
): Promise<void> {
  let failed: { readonly cause: unknown } | undefined;
  await Promise.all(
    tasks.map((task) =>
      task.catch((cause: unknown) => {
        if (failed) return;
        failed = { cause };
        onFailure(cause);
      }),
    ),
  );
  if (failed) throw failed.cause;
}
