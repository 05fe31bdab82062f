import { type Db, transaction } from '../db/pool.ts';
import type { Log } from '../lib/log.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import { nextRestart } from '../lib/restart-policy.ts';
import { inWork } from '../lib/tracing.ts';
import { listFailed } from '../vms/failure-store.ts';
import { restartFailedVm } from '../vms/restart-failed-vm.ts';
import { eachInTurn } from './each-in-turn.ts';

/** Starts failed VMs of instances with `restart: on_failure` again, each after its delay. */
export async function restartFailed(db: Db, quotas: QuotaLimits, log: Log, now = new Date()): Promise<void> {
  const due = (await listFailed(db)).filter(({ failed_at, restarted_at }) => {
    const next = nextRestart(failed_at, restarted_at);
    return next !== null && next <= now;
  });
  await eachInTurn(due, ({ instance_id }) => {
    const attributes = { 'berth.instance_id': instance_id };
    return inWork({ name: 'task restart failed', attributes, context: null }, async () => {
      const restarted = await transaction(db, (tx) => restartFailedVm(tx, quotas, instance_id, now));
      if (restarted) log.warn({ instance_id }, 'a failed VM is started again');
    });
  });
}
