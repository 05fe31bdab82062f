/** Builds the block map of a generation from the directories of its segments, one ranged read each. */
import { assert, present } from '../../lib/assert.ts';
import { ObjectNotFoundError, ObjectRangeError, type ObjectStore } from '../../object-store/object-store.ts';
import { BlockMap } from './block-map.ts';
import {
  decodeDirectory,
  decodeTrailer,
  SegmentCorruptError,
  type SegmentDirectory,
  TRAILER_BYTES,
  tailBytes,
} from './segment-format.ts';
import { verifyKey } from './segment-key.ts';

/** What the database knows of a segment. With `entries` the directory takes exactly one read. */
export interface SegmentRef {
  readonly key: string;
  readonly size_bytes: number;
  readonly entries?: number;
  /** When given, a segment of another disk is refused. Forks share segments: it is not always the own disk. */
  readonly disk_id?: string;
}

export interface LoadMapOptions {
  readonly store: ObjectStore;
  /** Oldest first: later ones override earlier ones. */
  readonly segments: readonly SegmentRef[];
  /** Reads in flight at once. */
  readonly concurrency?: number;
  readonly signal?: AbortSignal;
}

/** How much of the tail to read when the number of entries is not known: about 1,600 entries. */
const TAIL_GUESS_BYTES = 65_536;

/**
 * Reads the directories of `segments` and builds the map.
 * @throws SegmentCorruptError naming a segment that is missing, cut, swapped or rotten.
 */
export async function loadMap({
  store,
  segments,
  concurrency = 16,
  signal,
}: LoadMapOptions): Promise<BlockMap> {
  assert(concurrency >= 1, 'at least one read at a time');
  const map = new BlockMap();
  const reading = new Map<number, Promise<SegmentDirectory>>();
  const start = (i: number): void => {
    const ref = segments[i];
    if (!ref) return;
    const directory = readDirectory(store, ref, signal);
    directory.catch(() => {}); // awaited below, in order; another may fail first
    reading.set(i, directory);
  };
  for (let i = 0; i < concurrency; i++) start(i);
  for (let i = 0; i < segments.length; i++) {
    map.applySegment(await present(reading.get(i), 'a directory being read'));
    reading.delete(i);
    start(i + concurrency);
  }
  return map;
}

/**
 * Reads and verifies the directory of one segment; once more when it is not right, because its bytes may have changed
 * on their way. @throws SegmentCorruptError
 */
export async function readDirectory(
  store: ObjectStore,
  ref: SegmentRef,
  signal?: AbortSignal,
): Promise<SegmentDirectory> {
  try {
    return await readDirectoryOnce(store, ref, signal);
  } catch (error) {
    if (!(error instanceof SegmentCorruptError)) throw error;
    return readDirectoryOnce(store, ref, signal);
  }
}

async function readDirectoryOnce(
  store: ObjectStore,
  ref: SegmentRef,
  signal: AbortSignal | undefined,
): Promise<SegmentDirectory> {
  const { key, size_bytes } = ref;
  const wanted = ref.entries === undefined ? TAIL_GUESS_BYTES : tailBytes(ref.entries);
  let tail = await readTail(store, ref, Math.max(wanted, TRAILER_BYTES), signal);
  const needed = tailBytes(decodeTrailer(key, size_bytes, tail).entry_count);
  if (needed > tail.length) tail = await readTail(store, ref, needed, signal);
  const directory = decodeDirectory(key, size_bytes, tail);
  verifyKey(key, directory.identity);
  if (ref.disk_id !== undefined && ref.disk_id !== directory.identity.disk_id) {
    throw new SegmentCorruptError(key, `belongs to another disk (${directory.identity.disk_id})`);
  }
  if (ref.entries !== undefined && ref.entries !== directory.entries.length) {
    throw new SegmentCorruptError(
      key,
      `has ${directory.entries.length} entries where ${ref.entries} were written`,
    );
  }
  return directory;
}

async function readTail(
  store: ObjectStore,
  { key, size_bytes }: SegmentRef,
  wanted_bytes: number,
  signal?: AbortSignal,
): Promise<Buffer> {
  const length = Math.min(wanted_bytes, size_bytes);
  try {
    return await store.get(key, { offset: size_bytes - length, length }, signal);
  } catch (error) {
    throw asCorrupt(key, error);
  }
}

/** An object that is gone or too short is as bad as a rotten one; anything else passes through. */
export function asCorrupt(key: string, error: unknown, block?: number): unknown {
  const about = block === undefined ? { cause: error } : { cause: error, block };
  if (error instanceof ObjectNotFoundError)
    return new SegmentCorruptError(key, 'the object is missing', about);
  if (error instanceof ObjectRangeError)
    return new SegmentCorruptError(key, 'the object is cut short', about);
  return error;
}
