/** A nearly full file system below the data folder, found before writes fail. */
import { type StatsFs, statfsSync } from 'node:fs';
import type { WeakSetting } from '../config/weak-settings.ts';

const LEAST_FREE = 0.1;
const GIB = 2 ** 30;
const MIB = 2 ** 20;

export function fullDisk(
  data_dir: string,
  space: Pick<StatsFs, 'bavail' | 'blocks' | 'bsize'> = statfsSync(data_dir),
): WeakSetting[] {
  const { bavail, blocks, bsize } = space;
  if (bavail >= LEAST_FREE * blocks) return [];
  const [size, unit] = blocks * bsize >= GIB ? [GIB, 'GiB'] : [MIB, 'MiB'];
  const sized = (count: number) => ((count * bsize) / size).toFixed(1);
  const found = `nearly full: ${sized(bavail)} of ${sized(blocks)} ${unit} are free at ${data_dir}; without space VMs stop writing and flushes fail`;
  return [{ check: 'disk', found, next: `make room on the file system of ${data_dir}, or enlarge it` }];
}
