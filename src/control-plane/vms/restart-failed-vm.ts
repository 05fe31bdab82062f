import { present } from '../../shared/assert.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { nextRestart, RESTARTS_MAX } from '../../shared/restart-policy.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import { findFailed, markRestarted } from './failure-store.ts';
import { insertBoot } from './start-vm.ts';
import { newestVm } from './store.ts';

/**
 * Starts a failed VM again, as `system`, if its instance's `restart` says so and its delay is over. False otherwise.
 * @throws AppError QUOTA_EXCEEDED, UNAVAILABLE, CONFLICT as for a requested start
 */
export async function restartFailedVm(
  tx: Tx,
  quotas: QuotaLimits,
  id: InstanceId,
  now: Date,
): Promise<boolean> {
  await lockInstance(tx, id);
  const failed = await findFailed(tx, id);
  const next = failed && nextRestart(failed.failed_at, failed.restarted_at);
  if (!failed || !next || next > now) return false;
  const row = present(await getInstance(tx, id), 'instance under lock');
  const message = `The VM had failed (${row.reason_code}). This is start ${failed.restarted_at.length + 1} of at most ${RESTARTS_MAX} in 10 minutes.`;
  const host_id = await insertBoot(tx, quotas, row, { code: 'restart_on_failure', message, actor: 'system' });
  await markRestarted(tx, present(await newestVm(tx, id), 'new boot').id);
  await notify(tx, 'host', host_id);
  await notify(tx, 'instance', id);
  await notify(tx, 'routes', id);
  return true;
}
