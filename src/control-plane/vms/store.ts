import { sql } from 'kysely';
import type { Reason } from '../../protocol/types.ts';
import { assert } from '../../shared/assert.ts';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import { traceContext } from '../../shared/tracing.ts';
import type { Tx } from '../db/pool.ts';
import { countUse } from '../fleet/use-store.ts';
import { deadlineMs, type VmState } from './model.ts';

/** Bounds one round of a lost host, so that the other hosts are checked in between. */
const ON_HOSTS_MAX = 200;

export type VmRow = Awaited<ReturnType<typeof findVm>> & object;

export async function findVm(tx: Tx, id: VmId) {
  return tx.selectFrom('vms').selectAll().where('id', '=', id).executeTakeFirst();
}

/** The newest boot of an instance. */
export async function newestVm(tx: Tx, instance_id: InstanceId) {
  return tx
    .selectFrom('vms')
    .selectAll()
    .where('instance_id', '=', instance_id)
    .orderBy('boot', 'desc')
    .limit(1)
    .executeTakeFirst();
}

/**
 * The host that alone may have the last writes of a failed VM: that of the newest boot whose guest may have run. Null: a stop has
 * saved them since, or no guest ran.
 */
export async function hostOfUnsaved(tx: Tx, instance_id: InstanceId): Promise<HostId | null> {
  const row = await tx
    .selectFrom('vms')
    .select(['host_id', 'state'])
    .where('instance_id', '=', instance_id)
    .where((eb) => eb.or([eb('guest_ran', '=', true), eb('state', '=', 'stopped')]))
    .orderBy('boot', 'desc')
    .limit(1)
    .executeTakeFirst();
  return row?.state === 'failed' ? row.host_id : null;
}

export async function hostNameOf(tx: Tx, host_id: HostId): Promise<string> {
  const { name } = await tx
    .selectFrom('hosts')
    .select('name')
    .where('id', '=', host_id)
    .executeTakeFirstOrThrow();
  return name;
}

export interface NewVm {
  readonly id: VmId;
  readonly instance_id: InstanceId;
  readonly boot: number;
  readonly epoch: number;
  readonly host_id: HostId;
  /** The disk's head that the boot begins from. */
  readonly head: { readonly generation: number; readonly commit_id: string };
  readonly reason: VmReason;
}
export interface VmReason extends Reason {
  readonly actor: string;
}

/** The VM's current reason. */
export function reasonOf(row: Pick<VmRow, 'reason_code' | 'reason_message' | 'reason_actor'>): VmReason {
  return {
    code: row.reason_code ?? 'ready',
    message: row.reason_message ?? '',
    actor: row.reason_actor ?? 'system',
  };
}

/** By the clock of the database, as every time of a VM: control planes compare them, and their clocks may differ. */
const NOW = sql<Date>`date_trunc('milliseconds', clock_timestamp())`;

function deadlineOf(state: VmState) {
  const ms = deadlineMs(state);
  return ms === null ? null : sql<Date>`${NOW} + ${ms} * interval '1 millisecond'`;
}

export async function insertVm(tx: Tx, vm: NewVm): Promise<void> {
  await tx
    .insertInto('vms')
    .values({
      id: vm.id,
      instance_id: vm.instance_id,
      boot: vm.boot,
      epoch: vm.epoch,
      host_id: vm.host_id,
      desired: 'running',
      state: 'starting',
      reason_code: vm.reason.code,
      reason_message: vm.reason.message,
      reason_actor: vm.reason.actor,
      ssh_address: null,
      applied_keys: null,
      active_at: null,
      started_at: null,
      stopped_at: null,
      deadline_at: deadlineOf('starting'),
      suspended_at: null,
      restarted_at: null,
      generation: vm.head.generation,
      commit_id: vm.head.commit_id,
      trace_context: presentContext(),
    })
    .execute();
  await countUse(tx, vm.id, 1);
}

/** For a column. */
export function presentContext(): string | null {
  const context = traceContext();
  return context && JSON.stringify(context);
}

/** Whether a VM in this state uses CPUs and memory of its host. */
function usesHost(state: VmState): boolean {
  return state !== 'stopped' && state !== 'suspended' && state !== 'failed';
}

/** Sets the disk's epoch for a new boot, and its base image at the first one (else null). Returns the head. */
export async function beginEpoch(
  tx: Tx,
  instance_id: InstanceId,
  epoch: number,
  image_version: string | null,
): Promise<NewVm['head']> {
  return tx
    .updateTable('disks')
    .set({ epoch, ...(image_version === null ? {} : { image_version }) })
    .where('instance_id', '=', instance_id)
    .returning(['generation', 'commit_id'])
    .executeTakeFirstOrThrow();
}

/** Everything that the guest wrote is durable. */
export async function clearDirtyBytes(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx
    .updateTable('disks')
    .set({ dirty_bytes: 0 })
    .where('instance_id', '=', instance_id)
    .where('dirty_bytes', '!=', 0)
    .execute();
}

/** How many restarts of this boot were requested. */
export async function countReboots(tx: Tx, id: VmId): Promise<number> {
  const row = await tx.selectFrom('vms').select('reboots').where('id', '=', id).executeTakeFirstOrThrow();
  return row.reboots;
}

export interface VmChange {
  readonly state: VmState;
  readonly reason: VmReason;
  readonly desired?: 'running' | 'suspended' | 'stopped';
  readonly force?: boolean;
  readonly reboots?: number;
  readonly resets?: number;
  readonly ssh_address?: string | null;
  readonly applied_keys?: readonly string[];
  /** Its guest may have run. Never taken back. */
  readonly guest_ran?: true;
  readonly started_at?: 'now';
  readonly stopped_at?: 'now';
  readonly suspended_at?: 'now';
  /** What a change does not name ends a move. */
  readonly move?: 'suspend' | 'stop' | null;
  readonly move_problem?: string | null;
  readonly move_after?: Date | null;
}

/** Not only observed. */
function isAskedFor({ desired, force, reboots }: VmChange): boolean {
  return desired !== undefined || force !== undefined || reboots !== undefined;
}

/**
 * Changes a VM's row if it is still at `version`, which every change raises. Callers hold the instance's
 * lock, so a miss is a bug; the guard makes it loud instead of a lost update.
 */
export async function updateVm(
  tx: Tx,
  vm: { id: VmId; version: number; state: VmState },
  change: VmChange,
): Promise<void> {
  const { reason, applied_keys, move = null, started_at, stopped_at, suspended_at, ...rest } = change;
  const result = await tx
    .updateTable('vms')
    .set({
      ...rest,
      move,
      ...(started_at && { started_at: NOW }),
      ...(stopped_at && { stopped_at: NOW }),
      ...(suspended_at && { suspended_at: NOW }),
      ...(applied_keys === undefined ? {} : { applied_keys: JSON.stringify(applied_keys) }),
      reason_code: reason.code,
      reason_message: reason.message,
      reason_actor: reason.actor,
      ...(change.state === vm.state ? {} : { deadline_at: deadlineOf(change.state) }),
      ...(isAskedFor(change) ? { trace_context: presentContext() } : {}),
      version: sql`version + 1`,
    })
    .where('id', '=', vm.id)
    .where('version', '=', vm.version)
    .executeTakeFirst();
  assert(result.numUpdatedRows === 1n, `${vm.id} changed under the instance's lock`);
  const [before, after] = [usesHost(vm.state), usesHost(change.state)];
  if (before !== after) await countUse(tx, vm.id, after ? 1 : -1);
}

/** Restarts the idle timeout of a running VM. */
export async function markUsed(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx
    .updateTable('vms')
    .set({ active_at: sql`now()` })
    .where('instance_id', '=', instance_id)
    .where('state', 'in', ['running', 'restarting'])
    .execute();
}

/** Returns the VM's instance; null when the VM is not, or no longer, that host's. */
export async function setAppliedKeys(
  tx: Tx,
  vm: { id: VmId; host_id: HostId; epoch: number },
  applied_keys: readonly string[],
): Promise<InstanceId | null> {
  const row = await tx
    .updateTable('vms')
    .set({ applied_keys: JSON.stringify(applied_keys) })
    .where('id', '=', vm.id)
    .where('host_id', '=', vm.host_id)
    .where('epoch', '=', vm.epoch)
    .where(({ not, exists, selectFrom }) =>
      not(
        exists(
          selectFrom('vms as newer')
            .select('newer.id')
            .whereRef('newer.instance_id', '=', 'vms.instance_id')
            .whereRef('newer.boot', '>', 'vms.boot'),
        ),
      ),
    )
    .returning('instance_id')
    .executeTakeFirst();
  return row?.instance_id ?? null;
}

/** VMs whose transient state is past its deadline. `only`: that one, if it is. */
export async function listOverdue(
  tx: Tx,
  only: VmId | null = null,
): Promise<{ id: VmId; instance_id: InstanceId }[]> {
  let query = tx.selectFrom('vms').select(['id', 'instance_id']).where('deadline_at', '<', sql<Date>`now()`);
  if (only !== null) query = query.where('id', '=', only);
  return query.limit(100).execute();
}

/** VMs that have a QEMU process, or are to get one. */
export async function listActive(tx: Tx): Promise<{ id: VmId; instance_id: InstanceId; host_id: HostId }[]> {
  return tx
    .selectFrom('vms')
    .select(['id', 'instance_id', 'host_id'])
    .where('state', 'in', ['starting', 'running', 'restarting', 'suspending', 'stopping'])
    .execute();
}

/**
 * Unfinished work of hosts, bounded: active VMs, deletions, and flushes. Each part of the union uses an index: this runs
 * every second, and most boots ended long ago.
 */
export async function listOnHosts(
  tx: Tx,
  host_ids: readonly HostId[],
): Promise<{ id: VmId; instance_id: InstanceId; host_id: HostId }[]> {
  const these = sql`any(${[...host_ids]}::text[])`;
  const { rows } = await sql<{ id: VmId; instance_id: InstanceId; host_id: HostId }>`
    select id, instance_id, host_id from vms
    where host_id = ${these} and state not in ('stopped', 'suspended', 'failed') and not released
    union
    select v.id, v.instance_id, v.host_id from instances i join vms v on v.instance_id = i.id
    where i.deleting and v.host_id = ${these} and not v.released
    union
    select v.id, v.instance_id, v.host_id from flushes f join vms v on v.id = f.vm_id
    where (f.state = 'queued' or f.state = 'running') and v.host_id = ${these}
    order by instance_id limit ${ON_HOSTS_MAX}`.execute(tx);
  return rows;
}

/** The host has removed everything of a deleted instance. */
export async function markReleased(tx: Tx, instance_id: InstanceId, host_id: HostId): Promise<void> {
  const rows = await tx
    .selectFrom('vms')
    .select(['id', 'state'])
    .where('instance_id', '=', instance_id)
    .where('host_id', '=', host_id)
    .where('released', '=', false)
    .execute();
  for (const { id, state } of rows) if (usesHost(state)) await countUse(tx, id, -1);
  await tx
    .updateTable('vms')
    .set({ released: true })
    .where('instance_id', '=', instance_id)
    .where('host_id', '=', host_id)
    .execute();
}
