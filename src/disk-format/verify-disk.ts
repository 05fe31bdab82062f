/**
 * Reads and checks every object of a generation: maps, segment directories, frames (by tag and by hash), and object
 * sizes. After damage it continues, so that the verdict lists all damage. Memory: the disk's map and a few runs of
 * frames. `verifySegment` checks one whole segment, for tests.
 */
import { ObjectNotFoundError, type ObjectStore } from '../object-store/object-store.ts';
import { assert, present } from '../shared/assert.ts';
import { inParallel } from '../shared/concurrency.ts';
import { type BlockLocation, BlockMap, type SegmentSource } from './block-map.ts';
import { NOT_ITS_FRAME } from './compress-batch.ts';
import type { CompressPool } from './compress-pool.ts';
import { FrameCipher, type KeyRing, PURPOSE } from './frame-cipher.ts';
import { frameCrc, unpackFrame, ZERO_HASH } from './frame-codec.ts';
import { type Layer, readDirectory } from './load-map.ts';
import { readMap } from './map-objects.ts';
import { coalesce, type FrameRun, readRun } from './read-run.ts';
import {
  BLOCK_BYTES,
  decodeDirectory,
  FRAME_KIND,
  SegmentCorruptError,
  type SegmentDirectory,
  type SegmentEntry,
  verifyKey,
} from './segment-format.ts';

export interface ByteSpan {
  readonly offset: number;
  readonly length: number;
}

export interface Damage {
  /** The object's key. */
  readonly key: string;
  readonly problem: string;
  /**
   * The bytes of the disk that the damage makes unreadable, in order. Null: the object says where blocks are stored, so any
   * byte may be affected. Empty: all content is readable.
   */
  readonly bytes: readonly ByteSpan[] | null;
}

export interface DiskVerdict {
  /** Keys of the checked objects: maps and segments. */
  readonly objects: readonly string[];
  /** Blocks that differ from the base image. */
  readonly blocks: number;
  readonly read_bytes: number;
  readonly damages: readonly Damage[];
}

export interface VerifyProgress {
  readonly read_bytes: number;
  readonly total_bytes: number;
}

export interface VerifyDiskOptions {
  readonly store: ObjectStore;
  readonly keys: KeyRing;
  /** Oldest first. */
  readonly layers: readonly Layer[];
  readonly size_bytes: number;
  readonly pool?: CompressPool | undefined;
  readonly concurrency?: number;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: (progress: VerifyProgress) => void;
}

type Apply = (map: BlockMap) => Promise<void>;

/** Concurrent small reads. */
const REQUESTS = 16;

/** @throws ObjectStoreUnavailableError and the like: an object that cannot be read now is not damaged */
export async function verifyDisk(options: VerifyDiskOptions): Promise<DiskVerdict> {
  const { layers, signal } = options;
  const found = new Findings();
  const map = new BlockMap();
  for (let first = 0; first < layers.length; first += REQUESTS) {
    signal?.throwIfAborted();
    const some = layers.slice(first, first + REQUESTS);
    // Read concurrently, applied in order.
    const reads = some.map((layer) => startLayer(layer, options));
    for (const read of reads) await found.note(async () => (await read)(map));
  }
  const segments = [...map.live()];
  const total_bytes = segments.reduce((sum, { live_bytes }) => sum + live_bytes, 0);
  const unreadable = await verifyObjects(options, map, found);
  let read_bytes = 0;
  const runs = coalesce(wanted(map, options.size_bytes, unreadable, found));
  await inParallel(runs, options.concurrency ?? 4, async (run) => {
    signal?.throwIfAborted();
    await verifyRun(run, options, found);
    read_bytes += run.length;
    options.onProgress?.({ read_bytes, total_bytes });
  });
  const keys = new Set([...layers, ...segments].map(({ key }) => key));
  return { objects: [...keys], blocks: map.count, read_bytes, damages: found.damages() };
}

/** Returns a function that applies the layer to a map, of a cut map as far as it is correct. */
async function startLayer(layer: Layer, { store, keys, signal }: VerifyDiskOptions): Promise<Apply> {
  if ('full' in layer) return async (map) => void (await readMap(map, { store, ref: layer, keys, signal }));
  try {
    const directory = await readDirectory(store, layer, keys, signal);
    return async (map) => map.applySegment(directory);
  } catch (error) {
    // Another layer may fail before this one is awaited.
    return () => Promise.reject(error);
  }
}

/** Checks size and directory of the segments. Returns those whose frames need no reading. */
async function verifyObjects(
  { store, keys, layers, signal }: VerifyDiskOptions,
  map: BlockMap,
  found: Findings,
): Promise<ReadonlySet<string>> {
  const read = new Set(layers.map(({ key }) => key));
  const sources = new Map<string, SegmentSource>([...map.live()].map(({ key, segment }) => [key, segment]));
  const unreadable = new Set<string>();
  const objects = new Map([...layers, ...sources.values()].map(({ key, size_bytes }) => [key, size_bytes]));
  await inParallel(objects, REQUESTS, async ([key, size_bytes]) => {
    signal?.throwIfAborted();
    const size = await sizeOf(store, key);
    if (size === size_bytes) return;
    if (size === undefined && sources.has(key)) unreadable.add(key);
    const problem =
      size === undefined ? 'the object is missing' : `has ${size} bytes where ${size_bytes} were written`;
    found.add(key, problem, sources.has(key) ? [] : null);
  });
  // Reads of these segments use maps alone, but compaction needs their directories.
  const others = [...sources.values()].filter(({ key }) => !read.has(key) && !unreadable.has(key));
  await inParallel(others, REQUESTS, async ({ key, size_bytes, disk_id, encryption }) => {
    const ref = { key, size_bytes, disk_id, key_id: encryption?.key_id ?? null };
    await found.note(() => readDirectory(store, ref, keys, signal), []);
  });
  return unreadable;
}

async function sizeOf(store: ObjectStore, key: string): Promise<number | undefined> {
  try {
    return await store.size(key);
  } catch (error) {
    if (error instanceof ObjectNotFoundError) return undefined;
    throw error;
  }
}

/** The blocks to read, in the best order. Notes the damage of the others. */
function* wanted(
  map: BlockMap,
  size_bytes: number,
  unreadable: ReadonlySet<string>,
  found: Findings,
): Generator<BlockLocation> {
  for (const location of map.inSegmentOrder()) {
    const { key, block, kind, hash } = location;
    if (block * BLOCK_BYTES >= size_bytes) found.addBlock(key, 'a block is past the end of the disk', block);
    else if (kind === FRAME_KIND.zero) {
      if (Buffer.compare(hash, ZERO_HASH) !== 0)
        found.addBlock(key, 'is marked zero, but its hash is another', block);
    } else if (unreadable.has(key)) found.addBlock(key, 'the object is missing', block);
    else yield location;
  }
}

/** Reads each frame of a corrupt run on its own, to name only the damaged ones. */
async function verifyRun(run: FrameRun, options: VerifyDiskOptions, found: Findings): Promise<void> {
  try {
    await readRun(run, options);
  } catch (error) {
    if (!(error instanceof SegmentCorruptError)) throw error;
    const [first] = run.frames;
    if (run.frames.length === 1) {
      found.addBlock(run.key, error.problem, present(first, 'the frame of a run').block);
      return;
    }
    for (const frame of run.frames) {
      const { offset, stored_bytes: length } = frame;
      await verifyRun({ key: run.key, offset, length, frames: [frame] }, options, found);
    }
  }
}

/** Damage by object and problem. Adjacent blocks are one span. */
class Findings {
  readonly #found = new Map<string, { key: string; problem: string; unknown: boolean; blocks: number[] }>();

  add(key: string, problem: string, blocks: readonly number[] | null): void {
    const id = `${key}\n${problem}`;
    const entry = this.#found.get(id) ?? { key, problem, unknown: false, blocks: [] };
    this.#found.set(id, entry);
    if (blocks === null) entry.unknown = true;
    else entry.blocks.push(...blocks);
  }

  addBlock(key: string, problem: string, block: number): void {
    this.add(key, problem, [block]);
  }

  /** Runs `work` and notes a corrupt object, which makes `blocks` unreadable (null: any). Rethrows other errors. */
  async note(work: () => Promise<unknown>, blocks: readonly number[] | null = null): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof SegmentCorruptError)) throw error;
      this.add(error.key, error.problem, blocks);
    }
  }

  damages(): Damage[] {
    return [...this.#found.values()].map(({ key, problem, unknown, blocks }) => ({
      key,
      problem,
      bytes: unknown ? null : spansOf(blocks),
    }));
  }
}

export function spansOf(blocks: readonly number[]): ByteSpan[] {
  const spans: { offset: number; length: number }[] = [];
  for (const block of [...new Set(blocks)].sort((a, b) => a - b)) {
    assert(Number.isSafeInteger(block * BLOCK_BYTES), 'a block of a disk');
    const last = spans.at(-1);
    if (last && last.offset + last.length === block * BLOCK_BYTES) last.length += BLOCK_BYTES;
    else spans.push({ offset: block * BLOCK_BYTES, length: BLOCK_BYTES });
  }
  return spans;
}

const WRONG_CRC = 'the CRC of its stored bytes does not match';

/**
 * Verifies a whole segment, for tests: directory, key, and every frame by its tag or CRC and by the hash of its block.
 * Synchronous and slow (about 30 ms a segment).
 * @throws SegmentCorruptError
 */
export function verifySegment(key: string, object: Buffer, keys: KeyRing): SegmentDirectory {
  const directory = decodeDirectory(key, object.length, object, keys);
  verifyKey(key, directory.identity);
  const { encryption } = directory.identity;
  // The directory has decrypted, so the key exists.
  const segment_key = encryption && present(keys.derive(encryption, PURPOSE.segment), 'key of a segment');
  const cipher = segment_key && new FrameCipher(segment_key, directory.identity);
  const out = Buffer.allocUnsafe(BLOCK_BYTES);
  for (const entry of directory.entries) {
    const { block, kind, offset, stored_bytes, hash } = entry;
    const stored = object.subarray(offset, offset + stored_bytes);
    const fail = (problem: string): never => {
      throw new SegmentCorruptError(key, problem, { block });
    };
    const plain = openFrame(entry, stored, cipher) ?? fail(cipher ? NOT_ITS_FRAME : WRONG_CRC);
    const problem = unpackFrame(kind, plain, hash, out);
    if (problem !== undefined) fail(problem);
  }
  return directory;
}

/** The packed bytes. Undefined when tag or CRC do not match. */
function openFrame(
  { block, kind, mark }: SegmentEntry,
  stored: Buffer,
  cipher: FrameCipher | null,
): Uint8Array | undefined {
  if (kind === FRAME_KIND.zero) return mark === 0 ? stored : undefined;
  if (cipher) return cipher.open(block, kind, mark, stored);
  return mark === frameCrc(stored) ? stored : undefined;
}
