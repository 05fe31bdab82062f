/**
 * Reads blocks from segments, and verifies them. One ranged GET fetches a run: adjacent frames of one segment. The
 * blocks are unpacked and checked against their hashes; corrupt data is never returned. A run with a corrupt frame is
 * fetched once more, because bytes may have changed in transit.
 */
import type { ObjectStore } from '../object-store/object-store.ts';
import { assert, present } from '../shared/assert.ts';
import type { BlockLocation } from './block-map.ts';
import { unpackBatch } from './compress-batch.ts';
import type { CompressPool, Unpacked, UnpackTask } from './compress-pool.ts';
import { KeyRing, PURPOSE } from './frame-cipher.ts';
import { asCorrupt, FRAME_KIND, HASH_BYTES, SegmentCorruptError } from './segment-format.ts';

/** Adjacent frames of one segment. Zero blocks are never part of a run. */
export interface FrameRun {
  readonly key: string;
  readonly offset: number;
  readonly length: number;
  readonly frames: readonly BlockLocation[];
}

/** Stored bytes in one GET. */
const RUN_MAX_BYTES = 1024 * 1024;
/** Blocks in one run, so at most 4 MiB unpacked. */
const RUN_MAX_BLOCKS = 64;

/**
 * Groups locations, given in segment order, into runs. A gap ends a run, so that only wanted bytes are fetched. Zero
 * blocks are left out.
 */
export function* coalesce(locations: Iterable<BlockLocation>): Generator<FrameRun> {
  let frames: BlockLocation[] = [];
  let length = 0;
  for (const location of locations) {
    if (location.kind === FRAME_KIND.zero) continue;
    const first = frames[0];
    const joins =
      first &&
      first.key === location.key &&
      first.offset + length === location.offset &&
      length + location.stored_bytes <= RUN_MAX_BYTES &&
      frames.length < RUN_MAX_BLOCKS;
    if (first && !joins) {
      yield { key: first.key, offset: first.offset, length, frames };
      frames = [];
      length = 0;
    }
    frames.push(location);
    length += location.stored_bytes;
  }
  const first = frames[0];
  if (first) yield { key: first.key, offset: first.offset, length, frames };
}

export interface ReadRunOptions {
  readonly store: ObjectStore;
  /** The disk's keys. Not needed when nothing is encrypted. */
  readonly keys?: KeyRing | undefined;
  /** Unpacks in worker threads. When absent, on the calling thread. */
  readonly pool?: CompressPool | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Reads one run: its blocks, 64 KiB each, in the order of `run.frames`.
 * @throws SegmentCorruptError naming segment and block when the object is missing, cut or corrupt.
 */
export async function readRun(run: FrameRun, options: ReadRunOptions): Promise<Buffer> {
  let unpacked = await readOnce(run, options);
  if (!unpacked.ok) unpacked = await readOnce(run, options);
  if (unpacked.ok)
    return Buffer.from(unpacked.blocks.buffer, unpacked.blocks.byteOffset, unpacked.blocks.length);
  const { block } = present(run.frames[unpacked.index], 'the corrupt frame');
  throw new SegmentCorruptError(run.key, unpacked.problem, { block });
}

async function readOnce(run: FrameRun, options: ReadRunOptions): Promise<Unpacked> {
  const { store, pool, keys = KeyRing.none, signal } = options;
  const first = present(run.frames[0], 'the first frame of a run');
  const sealing = sealingOf(run, keys);
  let stored: Buffer;
  try {
    stored = await store.get(run.key, { offset: run.offset, length: run.length }, signal);
  } catch (error) {
    throw asCorrupt(run.key, error, first.block);
  }
  assert(stored.length === run.length, 'a store answers a range in full');
  return unpack(run, stored, sealing, pool);
}

/** How to decrypt the frames of a run. Undefined when they are not encrypted. */
function sealingOf({ key, frames }: FrameRun, keys: KeyRing): UnpackTask['sealing'] {
  const { segment } = present(frames[0], 'the first frame of a run');
  if (!segment.encryption) return undefined;
  const segment_key = keys.derive(segment.encryption, PURPOSE.segment);
  if (!segment_key) {
    const { key_id } = segment.encryption;
    throw new SegmentCorruptError(key, `is encrypted with a key that the disk does not have (${key_id})`);
  }
  const { disk_id, epoch, generation } = segment;
  return {
    key: segment_key,
    home: { disk_id, epoch, generation },
    numbers: Uint32Array.from(frames, ({ block }) => block),
    marks: Uint32Array.from(frames, ({ mark }) => mark),
  };
}

async function unpack(
  run: FrameRun,
  stored: Buffer,
  sealing: UnpackTask['sealing'],
  pool: CompressPool | undefined,
): Promise<Unpacked> {
  const hashes = new Uint8Array(run.frames.length * HASH_BYTES);
  for (const [i, frame] of run.frames.entries()) hashes.set(frame.hash, i * HASH_BYTES);
  const task = {
    frames: owned(stored),
    kinds: run.frames.map(({ kind }) => kind),
    stored_bytes: run.frames.map(({ stored_bytes }) => stored_bytes),
    hashes,
    sealing,
  };
  return pool ? pool.unpack(task) : unpackBatch(task);
}

/** A copy of the bytes in their own buffer, which can be transferred to a worker. */
function owned(bytes: Buffer): Uint8Array<ArrayBuffer> {
  const { buffer } = bytes;
  if (buffer instanceof ArrayBuffer && buffer.byteLength === bytes.length) return new Uint8Array(buffer);
  return new Uint8Array(bytes);
}
