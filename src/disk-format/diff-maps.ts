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

/** The same for `inSlices`: undefined for each block that has not changed, and now and then while they are sorted. */
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

/** Passes on the steps in which there was nothing to do. */
function* nextBlock(
  steps: Generator<BlockLocation | undefined>,
): Generator<undefined, BlockLocation | undefined> {
  for (;;) {
    const { done, value } = steps.next();
    if (done || value) return value;
    yield undefined;
  }
}

/** All of a map, for `inSlices`: what a full one holds. */
export function* wholeMap(map: BlockMap): Generator<MapChange | undefined> {
  for (const location of map.stepsInBlockOrder()) {
    yield location && { block: location.block, to: location };
  }
}

function isSamePlace(a: BlockLocation, b: BlockLocation): boolean {
  return a.key === b.key && a.offset === b.offset && a.kind === b.kind && a.mark === b.mark;
}
