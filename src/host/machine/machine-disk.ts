/**
 * A machine's disk as its QEMU counts it: what the dirty bitmap marks, what the guest has read and written.
 *
 * A freeze and its thaw each write the file system's superblock, so one block is marked after every flush of a running
 * guest. That this is all there is, is believed only if the guest was found frozen, has written once at most until it was
 * thawed, the flush has succeeded, and no other block is marked.
 */
import { present } from '../../lib/assert.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import type { BlockStats } from '../qmp/types.ts';
import { DEVICES, NODES } from '../vm/qemu-command.ts';

export const DIRTY_BITMAP = 'dirty';
/** The unit of dirty tracking, of segments and of restore; bytes. */
export const DIRTY_GRANULARITY = 65_536;
/** The superblock. */
const WRITES_OF_A_THAW = 1;

export class MachineDisk {
  readonly #qmp: QmpClient;
  /** The guest's writes so far when it was frozen, and when it was thawed from that. */
  #writes_frozen: number | null = null;
  #writes_thawed: number | null = null;
  /** The same, once that flush is durable and no block but the thaw's own is marked. */
  #writes_when_clean: number | null = null;

  constructor(qmp: QmpClient) {
    this.#qmp = qmp;
  }

  /** Bytes that the bitmap marks since the last finished flush; null: there is no bitmap. */
  async markedBytes(): Promise<number | null> {
    const nodes = await this.#qmp.execute('query-named-block-nodes', { flat: true });
    const overlay = nodes.find((node) => node['node-name'] === NODES.overlay);
    return overlay?.['dirty-bitmaps']?.find((each) => each.name === DIRTY_BITMAP)?.count ?? null;
  }

  /** A flush begins: nothing is known of its freeze yet. */
  noteBegun(): void {
    this.#writes_frozen = null;
    this.#writes_thawed = null;
    this.#writes_when_clean = null;
  }
  async noteFrozen(): Promise<void> {
    this.#writes_frozen = await this.#countWrites().catch(() => null);
  }
  async noteThawed(): Promise<void> {
    const before = this.#writes_frozen;
    const after = before === null ? null : await this.#countWrites().catch(() => null);
    const is_all = before !== null && after !== null && after - before <= WRITES_OF_A_THAW;
    this.#writes_thawed = is_all ? after : null;
  }
  async noteFlushed(): Promise<void> {
    const marked = await this.markedBytes().catch(() => null);
    this.#writes_when_clean = marked !== null && marked <= DIRTY_GRANULARITY ? this.#writes_thawed : null;
  }

  /** The guest has written nothing to its disk since it was thawed in the last flush, which succeeded. */
  async isUntouched(): Promise<boolean> {
    return this.#writes_when_clean !== null && (await this.#countWrites()) === this.#writes_when_clean;
  }

  /** What the guest has read and written since the process began. */
  async counters() {
    const stats = await this.#stats();
    return {
      read_bytes: stats.rd_bytes,
      written_bytes: stats.wr_bytes,
      read_operations: stats.rd_operations,
      write_operations: stats.wr_operations,
    };
  }

  async #countWrites(): Promise<number> {
    const stats = await this.#stats();
    return stats.wr_operations + stats.unmap_operations;
  }

  async #stats(): Promise<BlockStats> {
    const all = await this.#qmp.execute('query-blockstats', {});
    const disk = all.find((each) => each.qdev?.includes(DEVICES.disk));
    return present(disk, 'statistics of the disk').stats;
  }
}
