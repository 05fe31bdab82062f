/**
 * Yields the maps of several generations of a disk, in order. At most two are in memory at once. Each map is built on the
 * last but one, so each object of the chain is read twice, and not once for every generation.
 */
import type { ObjectStore } from '../object-store/object-store.ts';
import { BlockMap } from './block-map.ts';
import type { KeyRing } from './key-ring.ts';
import { type Layer, loadMap } from './load-map.ts';

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

/** Each yielded value is valid until the next call. @throws SegmentCorruptError */
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
