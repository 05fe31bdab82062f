import { present } from '../../shared/assert.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { notify } from '../db/notify.ts';
import { type Tx, violates } from '../db/pool.ts';
import { destroyDataKeys } from '../disks/data-keys.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { lockInstanceOf, refuseDeleting } from './lock-instance.ts';
import {
  enforcesEgress,
  findInstance,
  growDisk,
  type InstanceChange,
  type InstanceRow,
  markDeleting,
  updateInstance,
} from './store.ts';
import { instanceView } from './view.ts';

/** QEMU gets them at its start, so they change only while the VM is stopped. */
const SIZES = ['cpus', 'memory_mib'] as const;

/**
 * Changes name, labels and settings. CPUs and memory change only while the VM is stopped. A disk only grows; the host of a
 * running VM is told, and grows its file system.
 * @throws AppError NOT_FOUND, INVALID_REQUEST, CONFLICT, QUOTA_EXCEEDED
 */
export async function changeInstance(
  tx: Tx,
  quotas: QuotaLimits,
  principal: Principal,
  id: InstanceId,
  change: InstanceChange,
  /** Gets the version found under the lock; throws to refuse. */
  check: (version: number) => void,
): Promise<InstanceRow> {
  try {
    const row = await lockInstanceOf(tx, principal, id);
    const more_gib = (change.disk_gib ?? row.disk_gib) - row.disk_gib;
    if (more_gib < 0) throw invalid('disk_gib', `a disk only grows; it has ${row.disk_gib} GiB`);
    check(row.version);
    refuseDeleting(row);
    const state = row.state ?? 'stopped';
    if (SIZES.some((size) => change[size] !== undefined) && state !== 'stopped') {
      throw new AppError('CONFLICT', {
        message: `The VM is ${state}; cpus and memory_mib change while it is stopped.`,
      });
    }
    const mode = change.egress_mode ?? row.egress_mode;
    if (row.host_id && state !== 'stopped' && change.egress_mode !== undefined && mode !== 'open') {
      await requireEnforcement(tx, row.host_id, mode);
    }
    if (more_gib > 0) await checkQuota(tx, quotas, principal.org_id, { disk_gib: more_gib });
    await updateInstance(tx, id, change);
    if (change.disk_gib !== undefined && more_gib > 0) await growDisk(tx, id, change.disk_gib);
    if (row.host_id) await notify(tx, 'host', row.host_id);
    if (change.wake_on_connect !== undefined) await notify(tx, 'routes', id);
    return present(await findInstance(tx, principal.org_id, id), 'instance after its change');
  } catch (error) {
    if (violates(error, 'instances_org_id_name_key')) {
      throw new AppError('CONFLICT', {
        message: `An instance named "${change.name}" exists already.`,
        cause: error,
      });
    }
    throw error;
  }
}

/** @throws AppError CONFLICT where the host of a VM cannot enforce the mode */
async function requireEnforcement(tx: Tx, host_id: HostId, mode: string): Promise<void> {
  if (await enforcesEgress(tx, host_id)) return;
  throw new AppError('CONFLICT', {
    message: `The VM's host cannot enforce the egress mode "${mode}", because its VMs have QEMU's user network. Stop the VM, or run it on a host with TAP devices.`,
  });
}

/**
 * Begins the deletion, from any state. Idempotent. The disk's data keys are destroyed at once, so what only they opened is
 * unreadable from then on. The hosts end the VM and remove its files; then the task `free-deleted` removes objects and rows.
 */
export async function deleteInstance(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  check: (version: number) => void,
): Promise<InstanceRow> {
  const row = await lockInstanceOf(tx, principal, id);
  check(row.version);
  if (row.deleting) return row;
  await markDeleting(tx, id);
  await destroyDataKeys(tx, id);
  const after = present(await findInstance(tx, principal.org_id, id), 'instance after its change');
  await append(tx, {
    org_id: principal.org_id,
    instance_id: id,
    type: 'instance.deleted',
    data: { instance: instanceView(after) },
    actor: actorOf(principal),
  });
  if (row.host_id) await notify(tx, 'host', row.host_id);
  await notify(tx, 'routes', id);
  await notify(tx, 'deleting');
  return after;
}
