import { AppError } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { nextRestart } from '../../shared/restart-policy.ts';
import { inWork } from '../../shared/tracing.ts';
import { type Db, databaseTime, transaction } from '../db/pool.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import { type FailedVm, listFailed, postponeRestart } from './failure-store.ts';
import { restartFailedVm } from './restart-failed-vm.ts';

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
