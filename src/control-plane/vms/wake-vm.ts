import type { WakeResponse } from '../../protocol/ingress-types.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { notify } from '../db/notify.ts';
import { databaseTime, type Tx } from '../db/pool.ts';
import { getInstance, type InstanceRow, lockInstance } from '../instances/store.ts';
import { isMoving, resumeFailed, ruleFor } from './model.ts';
import { insertBoot } from './start-vm.ts';

/** After a failed resume, connections start the VM no more often than that. */
const RESUME_PAUSE_MS = 30_000;

const stoppedMs = ({ stopped_at }: InstanceRow) => stopped_at?.getTime() ?? 0;

/**
 * Starts the VM because a connection waits at its port: under the same rules as a requested start, as `system`.
 * @throws AppError QUOTA_EXCEEDED, UNAVAILABLE, CONFLICT
 */
export async function wakeVm(tx: Tx, quotas: QuotaLimits, id: InstanceId): Promise<WakeResponse> {
  await lockInstance(tx, id);
  const row = await getInstance(tx, id);
  if (!row || row.deleting) return { outcome: 'refused', why: 'there is no such instance' };
  // The task `move-vms` starts it.
  if (isMoving(row)) return { outcome: 'coming' };
  if (!row.wake_on_connect) return { outcome: 'refused', why: 'wake_on_connect is off' };
  const state = row.state ?? 'stopped';
  if (state === 'failed') return { outcome: 'refused', why: 'the VM has failed' };
  if (ruleFor(state, 'start') !== 'accepted') return { outcome: 'coming' };
  if (resumeFailed(row) && (await databaseTime(tx)).getTime() - stoppedMs(row) < RESUME_PAUSE_MS)
    return { outcome: 'refused', why: `it could not be resumed a moment ago: ${row.reason_message}` };
  const message = 'A connection came to its SSH port.';
  const host_id = await insertBoot(tx, quotas, row, { code: 'woken', message, actor: 'system' });
  await notify(tx, 'host', host_id);
  await notify(tx, 'instance', id);
  return { outcome: 'coming' };
}
