/**
 * Changes an instance: its settings, the size of its disk, its SSH keys. Deletes an instance, sets its disk back to an
 * earlier generation, and names and pins generations. Each change locks the instance first.
 */
import { present } from '../../shared/assert.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import { type HostId, type InstanceId, isId, type OrgId, type SshKeyId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { type NotifyHub, notify } from '../db/notify.ts';
import { type Db, type Tx, violates } from '../db/pool.ts';
import { destroyDataKeys } from '../disks/data-keys.ts';
import {
  countPinned,
  findRetained,
  type GenerationChange,
  type GenerationRow,
  insertRestored,
  updateGeneration,
} from '../disks/generation-store.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { notifyKeyChange } from '../ssh-keys/account-keys.ts';
import { allowedKeys, holdMemberKeys, replaceKeySet } from '../ssh-keys/store.ts';
import { instanceView } from './model.ts';
import {
  enforcesEgress,
  findInstance,
  growDisk,
  type InstanceChange,
  type InstanceRow,
  lockInstance,
  markDeleting,
  setHostKeys,
  updateInstance,
} from './store.ts';

// How a verb on an instance begins: find it for the caller, lock it, and refuse one that is being deleted.

/** An instance of the caller's organisation, locked until the transaction's end. @throws AppError NOT_FOUND */
export async function lockInstanceOf(tx: Tx, principal: Principal, id: InstanceId): Promise<InstanceRow> {
  await lockInstance(tx, id, principal.org_id);
  const row = await findInstance(tx, principal.org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  return row;
}

/** @throws AppError CONFLICT */
export function refuseDeleting({ deleting }: Pick<InstanceRow, 'deleting'>): void {
  if (deleting) throw new AppError('CONFLICT', { message: 'The instance is being deleted.' });
}

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

export interface KeySet {
  readonly mode: 'account' | 'explicit';
  readonly data: readonly {
    id: SshKeyId;
    name: string;
    type: string;
    fingerprint: string;
    owner_id: string;
  }[];
  readonly version: number;
}

/** The SSH keys that an instance allows. @throws AppError NOT_FOUND */
export async function readKeySet(tx: Tx, principal: Principal, id: InstanceId): Promise<KeySet> {
  const row = await findInstance(tx, principal.org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  const keys = await allowedKeys(tx, [id]).execute();
  const data = keys.map(({ id, name, type, fingerprint, owner_id }) => ({
    id,
    name,
    type,
    fingerprint,
    owner_id,
  }));
  return { mode: row.ssh_key_mode, data, version: row.version };
}

/** Replaces the whole set, or returns to mode `account` (ids null). Takes effect at once. */
export async function replaceKeys(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  ids: readonly string[] | null,
  /** Gets the set found under the lock; throws to refuse. */
  check: (present: KeySet) => void,
): Promise<KeySet> {
  const wanted = [...new Set(ids ?? [])];
  const malformed = wanted.find((each) => !isId('key', each));
  if (malformed !== undefined) throw notUsable(malformed.slice(0, 60));
  const row = await lockInstanceOf(tx, principal, id);
  refuseDeleting(row);
  check(await readKeySet(tx, principal, id));
  const known = await holdMemberKeys(tx, principal.org_id, wanted as SshKeyId[]);
  const foreign = wanted.find((each) => !known.has(each));
  if (foreign !== undefined) throw notUsable(foreign);
  await replaceKeySet(tx, id, ids === null ? 'account' : 'explicit', wanted as SshKeyId[]);
  const set = await readKeySet(tx, principal, id);
  const after = present(await findInstance(tx, principal.org_id, id), 'instance after its change');
  await append(tx, {
    org_id: principal.org_id,
    instance_id: id,
    type: 'instance.ssh_keys_replaced',
    data: { instance: instanceView(after), ssh_keys: { mode: set.mode, data: set.data } },
    actor: actorOf(principal),
  });
  await notifyKeyChange(tx, row.host_id === null ? [] : [{ instance_id: id, host_id: row.host_id }]);
  return set;
}

function notUsable(id: string): AppError {
  return invalid('ssh_key_ids', `"${id}" is not an SSH key of a member that this organisation may use`);
}

/** Longer than a host takes that is not busy with a flush. */
const WAIT_MS = 15_000;

/**
 * The instance once its running guest's root file system has the disk's new size, or as it is when the VM does not run, after a
 * while, or when `signal` aborts: the host goes on, and a guest that boots has the new size.
 */
export async function awaitGrowth(
  { db, hub }: { readonly db: Db; readonly hub: NotifyHub },
  org_id: OrgId,
  id: InstanceId,
  signal: AbortSignal,
): Promise<InstanceRow | undefined> {
  const look = async () => {
    const row = await hub.shared(`${org_id} ${id}`, () => findInstance(db, org_id, id));
    return row?.growth === 'next_boot' && row.state === 'running' ? undefined : { row };
  };
  const settled = await hub.waitFor('instance', id, WAIT_MS, look, signal);
  return settled ? settled.row : findInstance(db, org_id, id);
}

/**
 * Creates a new generation that equals an older one; those between stay. The new epoch makes every host's overlay stale. The
 * next boot reports the guest's host key, because the restored disk may have another one, or (a fork's first generation) none.
 * @throws AppError NOT_FOUND, CONFLICT
 */
export async function restoreInstance(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  generation: number,
  /** Gets the version found under the lock; throws to refuse. */
  check: (version: number) => void,
): Promise<InstanceRow> {
  const row = await lockInstanceOf(tx, principal, id);
  if (!(await findRetained(tx, id, generation))) throw noSuchGeneration(generation);
  check(row.version);
  refuseDeleting(row);
  const state = row.state ?? 'stopped';
  if (state !== 'stopped') {
    const message = `The VM is ${state}. Stop it (DELETE …/vm) before you restore its disk.`;
    throw new AppError('CONFLICT', { message });
  }
  await insertRestored(tx, id, generation);
  // Raises the version: an ETag from before the restore must fail.
  await updateInstance(tx, id, {});
  await setHostKeys(tx, id, null);
  const after = present(await findInstance(tx, principal.org_id, id), 'instance after its restore');
  await append(tx, {
    org_id: principal.org_id,
    instance_id: id,
    type: 'instance.restored',
    data: { instance: instanceView(after), restored_from: { generation } },
    actor: actorOf(principal),
  });
  await notify(tx, 'instance', id);
  return after;
}

export function noSuchGeneration(generation: number): AppError {
  return new AppError('NOT_FOUND', {
    message: `The instance has no generation ${generation}: it never existed, or was dropped.`,
  });
}

const PINNED_MAX = 100;

/** Names a generation, or pins it against the instance's retention rules. @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED */
export async function changeGeneration(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  generation: number,
  change: GenerationChange,
): Promise<GenerationRow> {
  const row = await lockInstanceOf(tx, principal, id);
  const before = await findRetained(tx, id, generation);
  if (!before) throw noSuchGeneration(generation);
  refuseDeleting(row);
  if (change.pinned === true && !before.pinned && (await countPinned(tx, id)) >= PINNED_MAX) {
    const message = `An instance can pin at most ${PINNED_MAX} generations. Unpin one first.`;
    throw new AppError('QUOTA_EXCEEDED', { message });
  }
  if (change.name !== undefined || change.pinned !== undefined)
    await updateGeneration(tx, id, generation, change);
  const after = await findRetained(tx, id, generation);
  // Retention dropped it between the two.
  if (!after) throw noSuchGeneration(generation);
  return after;
}
