/**
 * Asks QEMU about a machine's disk: its size, the blocks that are marked in the dirty bitmap, and the guest's reads and
 * writes. Tells whether the guest has written since the last flush (`isUntouched`).
 *
 * The bitmap alone cannot tell that: a freeze and its thaw each write the file system's superblock, so one block is
 * marked after every flush of a running guest. The disk counts as untouched if the guest was frozen, wrote at most once
 * until the thaw, the flush succeeded, no other block is marked, and no write came after the thaw.
 */
import { assert, present } from '../../shared/assert.ts';
import { DEVICES, NODES } from '../qemu/qemu-command.ts';
import type { BlockNodeInfo, BlockStats, QmpClient } from '../qemu/qmp-client.ts';

export const DIRTY_BITMAP = 'dirty';
/** Bytes: the unit of dirty tracking, of segments and of restore. */
export const DIRTY_GRANULARITY = 65_536;
/** The superblock. */
const WRITES_OF_A_THAW = 1;

export class MachineDisk {
  readonly #qmp: QmpClient;
  /** The guest's count of writes when it was frozen, and when it was thawed. */
  #writes_frozen: number | null = null;
  #writes_thawed: number | null = null;
  /** The same count, once that flush is durable and only the thaw's block is marked. */
  #writes_when_clean: number | null = null;

  constructor(qmp: QmpClient) {
    this.#qmp = qmp;
  }

  /** Bytes marked in the bitmap since the last finished flush; null: there is no bitmap. */
  async markedBytes(): Promise<number | null> {
    const overlay = await this.#overlay();
    return overlay?.['dirty-bitmaps']?.find((each) => each.name === DIRTY_BITMAP)?.count ?? null;
  }

  /** The size that the guest may see. While a growth is under way, the database has a larger one. */
  async sizeBytes(): Promise<number> {
    return present(await this.#overlay(), 'the overlay').image['virtual-size'];
  }

  /** The new part reads as zeroes. Also tells the guest. @throws QmpError while a job or an export has the disk */
  async resize(size_bytes: number): Promise<void> {
    assert((await this.sizeBytes()) <= size_bytes, 'a disk never shrinks');
    await this.#qmp.execute('block_resize', { 'node-name': NODES.overlay, size: size_bytes });
  }

  async #overlay(): Promise<BlockNodeInfo | undefined> {
    const nodes = await this.#qmp.execute('query-named-block-nodes', { flat: true });
    return nodes.find((node) => node['node-name'] === NODES.overlay);
  }

  /** A flush begins. */
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

  /** The guest has written nothing since the thaw of the last flush, which succeeded. */
  async isUntouched(): Promise<boolean> {
    return this.#writes_when_clean !== null && (await this.#countWrites()) === this.#writes_when_clean;
  }

  /** The guest's reads and writes since the process began. */
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
