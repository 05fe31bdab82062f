import { type Db, transaction } from '../db/pool.ts';
import type { Log } from '../lib/log.ts';
import { listIdle } from '../vms/activity-store.ts';
import { stopIdleVm } from '../vms/vm-calls.ts';

/** Stops, with their flush, the VMs that nobody has used for their `idle_timeout_seconds`. */
export async function stopIdle(db: Db, log: Log): Promise<void> {
  for (const id of await listIdle(db)) {
    const stopped = await transaction(db, (tx) => stopIdleVm(tx, id));
    if (stopped) log.info({ instance_id: id }, 'idle: the VM is stopped');
  }
}
