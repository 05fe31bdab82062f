import type { Log } from '../../shared/log.ts';
import { inWork } from '../../shared/tracing.ts';
import { type Db, transaction } from '../db/pool.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import { listIdle } from './activity-store.ts';
import { stopIdleVm } from './stop-vm.ts';

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
