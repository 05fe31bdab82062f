/**
 * The maps of several generations of a disk, one after another. Two are in memory at once, whatever their number: one that
 * follows the last but one is made of it, so that of a chain each object is read twice and not once for every generation.
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
  /** That of the generation before in the list; empty for the first. */
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

/** What it yields is good until the next is asked for. @throws SegmentCorruptError */
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
