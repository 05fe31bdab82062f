/** What changed from one map to another: what a delta holds. */
import type { BlockLocation, BlockMap } from './block-map.ts';
import type { MapChange } from './map-format.ts';

/**
 * The changes that make `to` of `from`, by rising block numbers. A block that lies elsewhere is a change, whether its
 * content is the same or not. The maps must not change meanwhile.
 */
export function* diffMaps(from: BlockMap, to: BlockMap): Generator<MapChange> {
  for (const change of diffSteps(from, to)) if (change) yield change;
}

/** The same for `inSlices`: undefined for each block that has not changed. */
export function* diffSteps(from: BlockMap, to: BlockMap): Generator<MapChange | undefined> {
  const before = from.inBlockOrder();
  let old = before.next();
  for (const location of to.inBlockOrder()) {
    for (; !old.done && old.value.block < location.block; old = before.next()) {
      yield { block: old.value.block, to: null };
    }
    const at_both = !old.done && old.value.block === location.block;
    yield at_both && isSamePlace(old.value, location) ? undefined : { block: location.block, to: location };
    if (at_both) old = before.next();
  }
  for (; !old.done; old = before.next()) yield { block: old.value.block, to: null };
}

/** All of a map: what a full one holds. */
export function* wholeMap(map: BlockMap): Generator<MapChange> {
  for (const location of map.inBlockOrder()) yield { block: location.block, to: location };
}

function isSamePlace(a: BlockLocation, b: BlockLocation): boolean {
  return a.key === b.key && a.offset === b.offset && a.kind === b.kind && a.mark === b.mark;
}
