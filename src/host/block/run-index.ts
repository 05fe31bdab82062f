/**
 * Which run of frames a block is fetched with: neighbours in a segment, up to what one GET brings (read-run.ts).
 *
 * Built once from a map, 12 bytes a block. The map may move on underneath: a run is put together from where the map
 * says that its blocks lie now, so what has moved away merely falls out of it.
 */
import type { BlockLocation, BlockMap } from '../../disk-format/block-map.ts';
import { coalesce, type FrameRun } from '../../disk-format/read-run.ts';
import { FRAME_KIND } from '../../disk-format/segment-format.ts';
import { assert, present } from '../../lib/assert.ts';

const KEPT_RUNS = 256;

export class RunIndex {
  /** Blocks with data, in the order they lie in their segments. */
  readonly #blocks: Uint32Array;
  /** Where each run begins in `#blocks`, and the end of the last. */
  readonly #starts: Uint32Array;
  /** Block numbers, rising, and beside each the run it is in. */
  readonly #sorted: Uint32Array;
  readonly #run_of: Uint32Array;
  /** Runs put together lately, by their number. */
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

  /** How many runs there are. */
  get count(): number {
    return this.#starts.length - 1;
  }

  /** The blocks of a run, as they were when the index was built. */
  blocksOf(run: number): Uint32Array {
    return this.#blocks.subarray(this.#starts[run], this.#starts[run + 1]);
  }

  /** The number of the run that a block was in; -1 when in none. */
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

  /** The run to fetch for a block that lies at `location` now. */
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
