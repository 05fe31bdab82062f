/** The difference of two maps, which a delta map stores. */
import type { BlockLocation, BlockMap } from './block-map.ts';
import type { MapChange } from './map-format.ts';

/**
 * The changes that turn `from` into `to`, in the order of block numbers. A block stored in another place is a change, even
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
