/** Restarts failed VMs of instances that ask for it, with pauses that grow. */
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { nextRestart, RESTARTS_MAX } from '../../shared/restart-policy.ts';
import { inWork } from '../../shared/tracing.ts';
import { notify } from '../db/notify.ts';
import { type Db, databaseTime, type Tx, transaction } from '../db/pool.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import { eachInTurn } from '../tasks/run-tasks.ts';
import { insertBoot } from './start-vm.ts';
import { type FailedVm, findFailed, listFailed, markRestarted, newestVm, postponeRestart } from './store.ts';

/**
 * Starts a failed VM again, as `system`, if its instance's `restart` says so and its delay is over. False otherwise.
 * @throws AppError QUOTA_EXCEEDED, UNAVAILABLE, CONFLICT as for a requested start
 */
async function restartFailedVm(tx: Tx, quotas: QuotaLimits, id: InstanceId, now: Date): Promise<boolean> {
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

/** Until the next try where a quota, or the room on the hosts, does not allow the start. */
const REFUSED_MS = 10_000;

/** Starts failed VMs of instances with `restart: on_failure` again, each after its delay. */
export async function restartFailed(
  db: Db,
  quotas: QuotaLimits,
  log: Log,
  at: Date | null = null,
): Promise<void> {
  const now = at ?? (await databaseTime(db));
  await eachInTurn(await listFailed(db, now), async (failed) => {
    const next = nextRestart(failed.failed_at, failed.restarted_at);
    if (next === null || next > now) return postponeRestart(db, failed, next);
    const tried = await inWork(workOf(failed), () => tryRestart(db, quotas, failed, now));
    if (tried === 'restarted') log.warn({ instance_id: failed.instance_id }, 'a failed VM is started again');
    if (!(tried instanceof AppError)) return;
    await postponeRestart(db, failed, new Date(now.getTime() + REFUSED_MS));
    const about = { instance_id: failed.instance_id, reason: tried.message };
    log.info(about, 'a failed VM cannot be started again yet');
  });
}

const workOf = ({ instance_id }: FailedVm) => ({
  name: 'task restart failed',
  attributes: { 'berth.instance_id': instance_id },
  context: null,
});

/** Returns why the start is refused, if it is. */
async function tryRestart(
  db: Db,
  quotas: QuotaLimits,
  { instance_id }: FailedVm,
  now: Date,
): Promise<'restarted' | 'not_wanted' | AppError> {
  try {
    const restarted = await transaction(db, (tx) => restartFailedVm(tx, quotas, instance_id, now));
    return restarted ? 'restarted' : 'not_wanted';
  } catch (error) {
    if (error instanceof AppError) return error;
    throw error;
  }
}
