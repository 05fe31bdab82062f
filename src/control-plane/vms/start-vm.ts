/**
 * Starts the VM of an instance: chooses a host, and inserts the row of the new boot. A caller requests the start, or a
 * connection does (`wakeVm`). A failed VM is started again if its instance asks for that, with growing delays
 * (`restartFailed`).
 */
import type { WakeResponse } from '../../protocol/ingress-types.ts';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { type HostId, type InstanceId, newId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { nextRestart, RESTARTS_MAX } from '../../shared/restart-policy.ts';
import { inWork } from '../../shared/tracing.ts';
import { notify } from '../db/notify.ts';
import { type Db, databaseTime, type Tx, transaction } from '../db/pool.ts';
import { type BootRequest, placeVm } from '../fleet/place-vm.ts';
import type { Principal } from '../identity/principal.ts';
import { currentImage } from '../images/store.ts';
import { getInstance, type InstanceRow, lockInstance } from '../instances/store.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { eachInTurn } from '../tasks/run-tasks.ts';
import { failFlushes } from './flush-vm.ts';
import { memorySavedOn, reassignMemory } from './memory-store.ts';
import { isMoving, resumeFailed, ruleFor } from './model.ts';
import { endMove } from './move-store.ts';
import { type CallCheck, type CallResult, newestVmOf, requestChange } from './request-change.ts';
import {
  beginEpoch,
  type FailedVm,
  findFailed,
  hostOfUnsaved,
  insertVm,
  listFailed,
  markRestarted,
  newestVm,
  postponeRestart,
  type VmReason,
} from './store.ts';

/** Starts a new boot on the host that fits; 200 if one is starting or running already. */
export function startVm(
  tx: Tx,
  quotas: QuotaLimits,
  principal: Principal,
  id: InstanceId,
  check: CallCheck,
): Promise<CallResult> {
  return requestChange(tx, principal, id, 'start', check, (row, reason) =>
    insertBoot(tx, quotas, row, reason('start_requested', 'A start was requested.')),
  );
}

/** What the instance's next boot needs of a host, its image aside. */
export async function wantedBy(tx: Tx, row: InstanceRow): Promise<Omit<BootRequest, 'image' | 'may_stay'>> {
  const { id, org_id, cpus, memory_mib, egress_mode, host_labels, tolerations, host_id: last, state } = row;
  const needs = { instance_id: id, org_id, cpus, memory_mib, egress_mode, host_labels, tolerations };
  const saved_on = row.state === null ? undefined : await memorySavedOn(tx, newestVmOf(row).id);
  const avoided = resumeFailed(row) ? last : null;
  return { ...needs, last, unsaved: state === 'failed', memory_of: saved_on ?? null, avoided };
}

/**
 * Places a new boot and raises the disk's epoch. The caller has locked the instance. `may_stay`: where no other host has room, on
 * the last one even if it is cordoned.
 */
export async function insertBoot(
  tx: Tx,
  /** Null: not checked, for a VM that only continues. */
  quotas: QuotaLimits | null,
  row: InstanceRow,
  reason: VmReason,
  may_stay = false,
): Promise<HostId> {
  if (quotas) await checkQuota(tx, quotas, row.org_id, { cpus: row.cpus, memory_mib: row.memory_mib });
  const image = await currentImage(tx, row.image);
  const wanted = await wantedBy(tx, row);
  const holder = wanted.unsaved ? await hostOfUnsaved(tx, row.id) : null;
  const host_id = await placeVm(tx, {
    ...{ ...wanted, last: holder ?? wanted.last, unsaved: holder !== null },
    ...{ image: image ? null : row.image, may_stay },
  });
  const epoch = row.disk_epoch + 1;
  // The first boot fixes the image version that the disk is a delta of.
  const first = row.boot === null && row.disk_image_version === null;
  if (first && image && image.size_bytes > row.disk_gib * 2 ** 30) {
    const least_gib = Math.ceil(image.size_bytes / 2 ** 30);
    const message = `The image "${row.image}" now needs a disk of ${least_gib} GiB. Set disk_gib to that first.`;
    throw new AppError('CONFLICT', { message });
  }
  const head = await beginEpoch(tx, row.id, epoch, first && image ? image.version : null);
  const id = newId('vm');
  await insertVm(tx, {
    id,
    instance_id: row.id,
    boot: (row.boot ?? 0) + 1,
    epoch,
    host_id,
    head,
    reason,
  });
  if (row.state === null) return host_id;
  const previous = newestVmOf(row);
  if (row.move !== null) await endMove(tx, previous.id);
  await reassignMemory(tx, previous.id, id);
  // The host of a failed VM no longer gets its flushes, and new callers must not join them.
  await failFlushes(tx, previous.id, 'The VM was started again.');
  return host_id;
}

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
  const message = 'A connection came to its SSH address or to one of its HTTP ports.';
  const host_id = await insertBoot(tx, quotas, row, { code: 'woken', message, actor: 'system' });
  await notify(tx, 'host', host_id);
  await notify(tx, 'instance', id);
  return { outcome: 'coming' };
}

// Restarts failed VMs of instances that ask for it, with pauses that grow.

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
