import { claimDisk, listWasteful, releaseDisk } from '../disks/compaction-store.ts';
import type { InstanceId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { type CompactOptions, compactDisk } from './compact-disk.ts';

/** Of one run: as many as there may be, for between two runs the task rests. */
export const DISKS_MAX = 1_000;

/** Compacts the disks that hold what no generation shown needs; begins none after `signal` aborts. */
export async function compactDisks(options: CompactOptions, log: Log, signal: AbortSignal): Promise<void> {
  const due = await listWasteful(options.db, DISKS_MAX);
  await eachClaimed(options, due, { log, signal }, async (instance_id) => {
    if (await compactDisk(options, instance_id)) log.info({ instance_id }, 'disk compacted');
  });
}

/**
 * One disk after another, each by one process at a time. One that fails keeps its claim, which keeps it from being tried
 * again at once, and the others are not kept waiting by it.
 */
export async function eachClaimed(
  { db }: CompactOptions,
  due: readonly InstanceId[],
  { log, signal }: { readonly log: Log; readonly signal: AbortSignal },
  work: (instance_id: InstanceId) => Promise<void>,
): Promise<void> {
  for (const instance_id of due) {
    if (signal.aborted) return;
    if (!(await claimDisk(db, instance_id))) continue;
    try {
      await work(instance_id);
      await releaseDisk(db, instance_id);
    } catch (error) {
      log.warn({ err: error, instance_id }, 'a disk could not be compacted; it is tried again later');
    }
  }
}
