/**
 * Builds the block map of a generation, which says for each block of the disk in which object, and where, it is stored.
 *
 * - `loadMap` reads the generation's layers from the object store, oldest first; a later layer overrides earlier ones.
 *   A layer is a segment, of which only the directory is read, or a map object (map-objects.ts): a full map, which only
 *   the first layer may be, or a delta map, with the changes of a map. It throws if an object is missing or corrupt.
 * - `chainMaps` builds the maps of several generations in turn, with at most two in memory.
 * - `diffMaps` lists the changes between two maps.
 */
import type { ObjectStore } from '../object-store/object-store.ts';
import { assert, present } from '../shared/assert.ts';
import { type BlockLocation, BlockMap } from './block-map.ts';
import { KeyRing } from './frame-cipher.ts';
import { type MapChange, type MapRef, readMap } from './map-objects.ts';
import {
  asCorrupt,
  decodeDirectory,
  decodeTrailer,
  SegmentCorruptError,
  type SegmentDirectory,
  TRAILER_BYTES,
  tailBytes,
  verifyKey,
} from './segment-format.ts';

/** A segment as the database knows it. With `entries` the directory takes exactly one read. */
export interface SegmentRef {
  readonly key: string;
  readonly size_bytes: number;
  readonly entries?: number;
  /** The disk that the segment must belong to. Forks share segments, so it may be another disk. */
  readonly disk_id?: string;
  /**
   * The key that the segment must be encrypted with; null: it must not be encrypted. So another object in the store cannot
   * replace the committed one.
   */
  readonly key_id?: string | null;
}

/** An object of a chain: a map, or a segment. */
export type Layer = SegmentRef | MapRef;

export interface LoadMapOptions {
  readonly store: ObjectStore;
  /** Oldest first. Later layers override earlier ones. Only the first may be a full map. */
  readonly layers: readonly Layer[];
  /** The disk's keys. Not needed when nothing is encrypted. */
  readonly keys?: KeyRing;
  /** Concurrent reads. */
  readonly concurrency?: number;
  readonly signal?: AbortSignal;
  /** The map of the chain below `layers`. It is changed and returned. */
  readonly onto?: BlockMap | undefined;
}

/** Bytes of the tail to read when the number of entries is unknown: about 1,600 entries. */
const TAIL_GUESS_BYTES = 65_536;

/**
 * Reads `layers` and builds the map. It needs memory for the map and the directories being read. When it throws, `onto` is
 * left half changed.
 * @throws SegmentCorruptError naming an object that is missing, cut, swapped or rotten.
 */
export async function loadMap({
  store,
  layers,
  keys = KeyRing.none,
  concurrency = 16,
  signal,
  onto,
}: LoadMapOptions): Promise<BlockMap> {
  assert(concurrency >= 1, 'at least one read at a time');
  const map = onto ?? new BlockMap();
  const reading = new Map<number, Promise<SegmentDirectory>>();
  const start = (i: number): void => {
    const layer = layers[i];
    if (!layer || isMap(layer)) return;
    const directory = readDirectory(store, layer, keys, signal);
    directory.catch(() => {}); // awaited below, in order; another may fail first
    reading.set(i, directory);
  };
  for (let i = 0; i < concurrency; i++) start(i);
  for (const [i, layer] of layers.entries()) {
    if (isMap(layer)) {
      assert(!layer.full || (i === 0 && !onto), 'a full map begins a chain');
      await readMap(map, { store, ref: layer, keys, signal });
    } else {
      map.applySegment(await present(reading.get(i), 'a directory being read'));
    }
    reading.delete(i);
    start(i + concurrency);
  }
  return map;
}

function isMap(layer: Layer): layer is MapRef {
  return 'full' in layer;
}

/**
 * Reads and verifies the directory of one segment. Reads a corrupt one once more: the bytes may have changed in transit.
 * @throws SegmentCorruptError
 */
export async function readDirectory(
  store: ObjectStore,
  ref: SegmentRef,
  keys: KeyRing,
  signal?: AbortSignal,
): Promise<SegmentDirectory> {
  try {
    return await readDirectoryOnce(store, ref, keys, signal);
  } catch (error) {
    if (!(error instanceof SegmentCorruptError)) throw error;
    return readDirectoryOnce(store, ref, keys, signal);
  }
}

async function readDirectoryOnce(
  store: ObjectStore,
  ref: SegmentRef,
  keys: KeyRing,
  signal: AbortSignal | undefined,
): Promise<SegmentDirectory> {
  const { key, size_bytes } = ref;
  const wanted = ref.entries === undefined ? TAIL_GUESS_BYTES : tailBytes(ref.entries);
  let tail = await readTail(store, ref, Math.max(wanted, TRAILER_BYTES), signal);
  const needed = tailBytes(decodeTrailer(key, size_bytes, tail).entry_count);
  if (needed > tail.length) tail = await readTail(store, ref, needed, signal);
  const { identity } = decodeTrailer(key, size_bytes, tail);
  if (ref.key_id !== undefined && ref.key_id !== (identity.encryption?.key_id ?? null)) {
    throw new SegmentCorruptError(key, 'is not encrypted with the key that it was written with');
  }
  const directory = decodeDirectory(key, size_bytes, tail, keys);
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

/** The layers of one generation. */
export interface Chain {
  readonly generation: number;
  /** Oldest first. */
  readonly layers: readonly Layer[];
}

export interface ChainMap {
  readonly generation: number;
  readonly map: BlockMap;
  /** The map of the previous generation in the list; empty for the first. */
  readonly before: BlockMap;
}

export interface ChainMapsOptions {
  readonly store: ObjectStore;
  readonly keys: KeyRing;
  readonly chains: readonly Chain[];
  readonly signal?: AbortSignal | undefined;
}

interface Loaded {
  readonly layers: readonly Layer[];
  readonly map: BlockMap;
}

/**
 * Yields the maps of several generations of a disk, in order. At most two are in memory at once. Each map is built on the
 * last but one, so each object of the chain is read twice, and not once for every generation.
 * Each yielded value is valid until the next call. @throws SegmentCorruptError
 */
export async function* chainMaps({
  store,
  keys,
  chains,
  signal,
}: ChainMapsOptions): AsyncGenerator<ChainMap> {
  const stop = signal ? { signal } : {};
  let older: Loaded = { layers: [], map: new BlockMap() };
  let last: Loaded = { layers: [], map: new BlockMap() };
  for (const { generation, layers } of chains) {
    const follows = older.layers.length > 0 && beginsWith(layers, older.layers);
    const rest = follows ? layers.slice(older.layers.length) : layers;
    const onto = follows ? older.map : undefined;
    const map = await loadMap({ store, keys, layers: rest, onto, ...stop });
    yield { generation, map, before: last.map };
    older = last;
    last = { layers, map };
  }
}

function beginsWith(layers: readonly Layer[], first: readonly Layer[]): boolean {
  return first.length <= layers.length && first.every(({ key }, i) => layers[i]?.key === key);
}

/**
 * The changes that turn `from` into `to`, which a delta map stores, in the order of block numbers. A block stored in another place is a change, even
 * with the same content. The maps must not change meanwhile.
 */
export function* diffMaps(from: BlockMap, to: BlockMap): Generator<MapChange> {
  for (const change of diffSteps(from, to)) if (change) yield change;
}

/** The same for `inSlices`: yields undefined for each unchanged block, and now and then while it sorts. */
export function* diffSteps(from: BlockMap, to: BlockMap): Generator<MapChange | undefined> {
  const before = from.stepsInBlockOrder();
  let old = yield* nextBlock(before);
  for (const location of to.stepsInBlockOrder()) {
    if (!location) {
      yield undefined;
      continue;
    }
    for (; old && old.block < location.block; old = yield* nextBlock(before)) {
      yield { block: old.block, to: null };
    }
    const same_block = old?.block === location.block;
    yield same_block && old && isSamePlace(old, location)
      ? undefined
      : { block: location.block, to: location };
    if (same_block) old = yield* nextBlock(before);
  }
  for (; old; old = yield* nextBlock(before)) yield { block: old.block, to: null };
}

/** Passes on steps without a result. */
function* nextBlock(
  steps: Generator<BlockLocation | undefined>,
): Generator<undefined, BlockLocation | undefined> {
  for (;;) {
    const { done, value } = steps.next();
    if (done || value) return value;
    yield undefined;
  }
}

/** The changes of a full map, for `inSlices`. */
export function* wholeMap(map: BlockMap): Generator<MapChange | undefined> {
  for (const location of map.stepsInBlockOrder()) {
    yield location && { block: location.block, to: location };
  }
}

function isSamePlace(a: BlockLocation, b: BlockLocation): boolean {
  return a.key === b.key && a.offset === b.offset && a.kind === b.kind && a.mark === b.mark;
}
