import { type Db, transaction } from '../db/pool.ts';
import type { Log } from '../lib/log.ts';
import { inWork } from '../lib/tracing.ts';
import { listIdle } from '../vms/activity-store.ts';
import { stopIdleVm } from '../vms/stop-vm.ts';
import { eachInTurn } from './each-in-turn.ts';

/** Stops, with their flush, the VMs that were not used for their `idle_timeout_seconds`. */
export async function stopIdle(db: Db, log: Log): Promise<void> {
  await eachInTurn(await listIdle(db), (id) => {
    const attributes = { 'berth.instance_id': id };
    return inWork({ name: 'task stop idle', attributes, context: null }, async () => {
      const stopped = await transaction(db, (tx) => stopIdleVm(tx, id));
      if (stopped) log.info({ instance_id: id }, 'idle: the VM is stopped');
    });
  });
}
