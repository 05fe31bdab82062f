/**
 * Groups blocks into runs: neighbours in a segment that one GET fetches (read-run.ts).
 *
 * Built once from a map, 12 bytes a block. The map may change afterwards: a run is composed from the present places of its
 * blocks, so a moved block drops out of it.
 */
import type { BlockLocation, BlockMap } from '../../disk-format/block-map.ts';
import { coalesce, type FrameRun } from '../../disk-format/read-run.ts';
import { FRAME_KIND } from '../../disk-format/segment-format.ts';
import { assert, present } from '../../shared/assert.ts';

const KEPT_RUNS = 256;

export class RunIndex {
  /** Blocks with data, in segment order. */
  readonly #blocks: Uint32Array;
  /** The start of each run in `#blocks`, and the end of the last. */
  readonly #starts: Uint32Array;
  /** Sorted block numbers; `#runs` has the run of each. */
  readonly #sorted: Uint32Array;
  readonly #run_of: Uint32Array;
  /** Recently composed runs, by number. */
  readonly #kept = new Map<number, readonly FrameRun[]>();

  constructor(map: BlockMap) {
    const blocks: number[] = [];
    const starts: number[] = [];
    for (const run of coalesce(map.inSegmentOrder())) {
      starts.push(blocks.length);
      for (const { block } of run.frames) blocks.push(block);
    }
    starts.push(blocks.length);
    this.#blocks = Uint32Array.from(blocks);
    this.#starts = Uint32Array.from(starts);
    const places = Uint32Array.from(blocks, (_, place) => place);
    places.sort((a, b) => (blocks[a] ?? 0) - (blocks[b] ?? 0));
    this.#sorted = Uint32Array.from(places, (place) => blocks[place] ?? 0);
    const run_at = new Uint32Array(blocks.length);
    for (let run = 0; run < this.count; run++) run_at.fill(run, starts[run], starts[run + 1]);
    this.#run_of = Uint32Array.from(places, (place) => run_at[place] ?? 0);
  }

  /** The number of runs. */
  get count(): number {
    return this.#starts.length - 1;
  }

  /** The blocks of a run at the time the index was built. */
  blocksOf(run: number): Uint32Array {
    return this.#blocks.subarray(this.#starts[run], this.#starts[run + 1]);
  }

  /** The run of a block, or -1. */
  find(block: number): number {
    let low = 0;
    let high = this.#sorted.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#sorted[middle] ?? 0) < block) low = middle + 1;
      else high = middle;
    }
    return this.#sorted[low] === block ? (this.#run_of[low] ?? -1) : -1;
  }

  /** The run to fetch for a block at `location`. */
  runFor(map: BlockMap, location: BlockLocation): FrameRun {
    const number = this.find(location.block);
    if (number < 0) return alone(location);
    const kept = holding(this.#kept.get(number), location);
    if (kept) return kept;
    const locations = [...this.blocksOf(number)].map((block) => present(map.get(block), 'a block of a run'));
    const runs = [...coalesce(locations)];
    this.#kept.delete(number);
    this.#kept.set(number, runs);
    const oldest = this.#kept.keys().next();
    if (this.#kept.size > KEPT_RUNS && !oldest.done) this.#kept.delete(oldest.value);
    return holding(runs, location) ?? alone(location);
  }
}

function holding(runs: readonly FrameRun[] | undefined, wanted: BlockLocation): FrameRun | undefined {
  return runs?.find(
    ({ key, frames }) =>
      key === wanted.key &&
      frames.some(({ block, offset }) => block === wanted.block && offset === wanted.offset),
  );
}

function alone(location: BlockLocation): FrameRun {
  const { key, offset, stored_bytes, kind } = location;
  assert(kind !== FRAME_KIND.zero, 'a zero block needs no fetch');
  return { key, offset, length: stored_bytes, frames: [location] };
}
