import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { type CompactOptions, compactDisk } from './compact-disk.ts';
import { claimDisk, listWasteful, releaseDisk } from './compaction-store.ts';

/** Disks of one run; the rest waits for the next. */
export const DISKS_MAX = 1_000;

/** Compacts the disks that hold objects which no retained generation needs. Begins no disk after `signal` aborts. */
export async function compactDisks(options: CompactOptions, log: Log, signal: AbortSignal): Promise<void> {
  const due = await listWasteful(options.db, DISKS_MAX);
  await eachClaimed(options, due, { log, signal }, async (instance_id) => {
    if (await compactDisk(options, instance_id)) log.info({ instance_id }, 'disk compacted');
  });
}

/**
 * Works on one disk after another; one process at a time claims a disk. A disk that fails keeps its claim until the claim
 * expires, so it is not retried at once, and the others go on.
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
