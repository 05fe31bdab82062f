/** Starts the VM of an instance: places it, and writes the boot. A connection may wake it. */
import type { WakeResponse } from '../../protocol/ingress-types.ts';
import { AppError } from '../../shared/errors.ts';
import { type HostId, type InstanceId, newId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { notify } from '../db/notify.ts';
import { databaseTime, type Tx } from '../db/pool.ts';
import { placeVm, type Wanted } from '../fleet/place.ts';
import type { Principal } from '../identity/principal.ts';
import { currentImage } from '../images/store.ts';
import { getInstance, type InstanceRow, lockInstance } from '../instances/store.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { failFlushes } from './flush-vm.ts';
import { memorySavedOn, reassignMemory } from './memory-store.ts';
import { isMoving, resumeFailed, ruleFor } from './model.ts';
import { endMove } from './move-store.ts';
import { type CallCheck, type CallResult, newestVmOf, requestChange } from './request-change.ts';
import { beginEpoch, hostOfUnsaved, insertVm, type VmReason } from './store.ts';

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
export async function wantedBy(tx: Tx, row: InstanceRow): Promise<Omit<Wanted, 'image' | 'may_stay'>> {
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
  const message = 'A connection came to its SSH port.';
  const host_id = await insertBoot(tx, quotas, row, { code: 'woken', message, actor: 'system' });
  await notify(tx, 'host', host_id);
  await notify(tx, 'instance', id);
  return { outcome: 'coming' };
}
