/**
 * Limits the I/O rate of one VM's disk in QEMU, so that no guest takes the whole disk of the host. The burst allows for a
 * boot, a build or the start of a database. A flush, which QEMU does itself, does not count.
 */
import { present } from '../../shared/assert.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { DEVICES } from './qemu-command.ts';

const MIB = 2 ** 20;
/** Seconds. */
const BURST_LENGTH = 10;

export const DISK_LIMITS = {
  bps: 512 * MIB,
  iops: 25_000,
  bps_max: 2_048 * MIB,
  iops_max: 100_000,
} as const;

/** Call it before the guest runs. */
export async function limitDisk(qmp: QmpClient): Promise<void> {
  const { bps, iops, bps_max, iops_max } = DISK_LIMITS;
  const all = await qmp.execute('query-block', undefined);
  // On PCI its path contains the device's name.
  const disk = all.find(({ qdev }) => qdev?.split('/').includes(DEVICES.disk));
  await qmp.execute('block_set_io_throttle', {
    id: present(disk?.qdev, 'the path of the disk'),
    ...{ bps, bps_rd: 0, bps_wr: 0, iops, iops_rd: 0, iops_wr: 0 },
    ...{ bps_max, bps_max_length: BURST_LENGTH, iops_max, iops_max_length: BURST_LENGTH },
  });
}
