/** Counts which blocks of which segments several maps refer to. */
import { inSlices } from '../shared/concurrency.ts';
import type { BlockLocation, BlockMap, SegmentSource } from './block-map.ts';
import { BlockSet } from './block-set.ts';
import { diffSteps } from './load-map.ts';
import { ENTRY_BYTES, TRAILER_BYTES } from './segment-format.ts';

interface Live {
  readonly source: SegmentSource;
  readonly blocks: BlockSet;
  stored_bytes: number;
}

export class LiveBlocks {
  readonly #segments = new Map<string, Live>();

  /** Adds the blocks that `map` refers to and `before`, which was added earlier, does not. */
  async addChanges(before: BlockMap, map: BlockMap): Promise<void> {
    await inSlices(diffSteps(before, map), ({ to }) => {
      if (to) this.#add(to);
    });
  }

  has(key: string): boolean {
    return this.#segments.has(key);
  }

  isLive(key: string, block: number): boolean {
    return this.#segments.get(key)?.blocks.has(block) ?? false;
  }

  /** Segments of which less than half is live: rewriting them frees more than half of their size. */
  wasteful(): SegmentSource[] {
    return [...this.#segments.values()].flatMap(({ source, blocks, stored_bytes }) => {
      const anew = stored_bytes + blocks.count * ENTRY_BYTES + TRAILER_BYTES;
      return anew * 2 < source.size_bytes ? [source] : [];
    });
  }

  /** A segment has each block at most once, so the block number identifies the frame. */
  #add({ segment, block, stored_bytes }: BlockLocation): void {
    let live = this.#segments.get(segment.key);
    if (!live) {
      live = { source: segment, blocks: new BlockSet(), stored_bytes: 0 };
      this.#segments.set(segment.key, live);
    }
    if (live.blocks.add(block)) live.stored_bytes += stored_bytes;
  }
}
