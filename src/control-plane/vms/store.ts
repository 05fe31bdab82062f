/**
 * SQL of VMs, which have a row for each boot; of failed VMs that are started again; of execs that are lost with a boot;
 * and of the scripts that run at an instance's first boot.
 */
import { sql } from 'kysely';
import type { Reason } from '../../protocol/types.ts';
import { assert } from '../../shared/assert.ts';
import type { ExecId, HostId, InstanceId, VmId } from '../../shared/ids.ts';
import { RESTARTS_WINDOW_MS } from '../../shared/restart-policy.ts';
import { traceContext } from '../../shared/tracing.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { countUse } from '../fleet/host-store.ts';
import { deadlineMs, VM_STATES, type VmState } from './model.ts';

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

/** A failed VM that its instance's `restart` may start again, and the starts that `restart` made before. */
export interface FailedVm {
  readonly vm_id: VmId;
  readonly instance_id: InstanceId;
  readonly failed_at: Date;
  /** Those of the ten minutes before it failed. */
  readonly restarted_at: readonly Date[];
}

/**
 * The newest boots that failed while they were wanted, of instances with `restart: on_failure`, and that were not postponed beyond
 * `now`. Whoever waits longest comes first, so that nobody's failures hide another's.
 */
export async function listFailed(tx: Tx, now: Date): Promise<FailedVm[]> {
  return failed(
    tx,
    sql`and (v.restart_after is null or v.restart_after <= ${now})
      order by v.restart_after nulls first, v.stopped_at limit 100`,
  );
}

/** Until the next look at the failed VM; null: it is not started again by itself. */
export async function postponeRestart(tx: Tx, { vm_id }: FailedVm, until: Date | null): Promise<void> {
  const restart_after = until?.toISOString() ?? 'infinity';
  await tx.updateTable('vms').set({ restart_after }).where('id', '=', vm_id).execute();
}

/** The same of one instance, which the caller has locked. */
export async function findFailed(tx: Tx, id: InstanceId): Promise<FailedVm | undefined> {
  return (await failed(tx, sql`and i.id = ${id}`))[0];
}

async function failed(tx: Tx, rest: ReturnType<typeof sql>): Promise<FailedVm[]> {
  const { rows } = await sql<FailedVm>`
    select v.id as vm_id, i.id as instance_id, v.stopped_at as failed_at, coalesce(r.restarted_at, '{}') as restarted_at
    from vms v
    join instances i on i.id = v.instance_id
    cross join lateral (
      select array_agg(earlier.restarted_at) as restarted_at from vms earlier
      where earlier.instance_id = i.id
        and earlier.restarted_at > v.stopped_at - make_interval(secs => ${RESTARTS_WINDOW_MS / 1000})
    ) r
    where i.restart <> 'never' and not i.deleting
      and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot)
      and v.state = 'failed' and (v.desired = 'running' or v.move is not null) and v.stopped_at is not null ${rest}`.execute(
    tx,
  );
  return rows;
}

export async function markRestarted(tx: Tx, id: VmId): Promise<void> {
  await tx.updateTable('vms').set({ restarted_at: sql`now()` }).where('id', '=', id).execute();
}

/** Execs end with the boot that they run in: marks the instance's running execs as `lost`. */
export async function loseExecs(tx: Tx, instance_id: InstanceId): Promise<void> {
  const lost = await tx
    .updateTable('execs')
    .set({ state: 'lost', lost_with: 'boot', ended_at: sql<Date>`date_trunc('milliseconds', now())` })
    .where('instance_id', '=', instance_id)
    .where('state', '=', 'running')
    .returning('id')
    .execute();
  for (const { id } of lost) await notify(tx, 'exec', id satisfies ExecId);
}

// The user_data script for an instance's first boot. The disk records that it has run there. The database keeps the script
// until that disk is durable, so that a first boot whose disk was lost can run it again, and then erases it.

/** For the host of the instance's newest VM while that may write; null when the script was erased or never given. */
export async function readUserData(tx: Tx, host_id: HostId, vm_id: VmId): Promise<string | null> {
  const { rows } = await sql<{ script: string }>`
    select u.script from user_data u join (${writingVm(host_id, vm_id)}) v using (instance_id)`.execute(tx);
  return rows[0]?.script ?? null;
}

/** The guest has stored it on its disk. False when the VM is not, or no longer, that host's. */
export async function markUserDataGiven(tx: Tx, host_id: HostId, vm_id: VmId): Promise<boolean> {
  const { rows } = await sql`${writingVm(host_id, vm_id)}`.execute(tx);
  await sql`
    update user_data set given = true
    where instance_id in (${writingVm(host_id, vm_id)})`.execute(tx);
  return rows.length > 0;
}

function writingVm(host_id: HostId, vm_id: VmId) {
  return sql`
    select v.instance_id from vms v
    where v.id = ${vm_id} and v.host_id = ${host_id} and v.state not in ('stopped', 'suspended')
      and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot)`;
}

// Counts for the operators' metrics.

/** Instances by the state of their newest VM; every state has a count. */
export async function countVmStates(tx: Tx): Promise<ReadonlyMap<VmState, number>> {
  const rows = await tx
    .selectFrom('instances as i')
    .leftJoinLateral(
      (eb) =>
        eb
          .selectFrom('vms')
          .select('vms.state')
          .whereRef('vms.instance_id', '=', 'i.id')
          .orderBy('vms.boot', 'desc')
          .limit(1)
          .as('v'),
      (join) => join.onTrue(),
    )
    .select((eb) => ['v.state', eb.fn.countAll<number>().as('count')])
    .groupBy('v.state')
    .execute();
  const counts = new Map<VmState, number>(VM_STATES.map((state) => [state, 0]));
  for (const { state, count } of rows) {
    const key = state ?? 'stopped';
    counts.set(key, (counts.get(key) ?? 0) + Number(count));
  }
  return counts;
}

/** Requested flushes that have not ended. */
export async function countOpenFlushes(tx: Tx): Promise<number> {
  const row = await tx
    .selectFrom('flushes')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('state', 'in', ['queued', 'running'])
    .executeTakeFirstOrThrow();
  return Number(row.count);
}

/** A longer interval between automatic flushes tells nothing of a flush that fails. */
const LONGEST_INTERVAL_SECONDS = 300;

/**
 * How long the oldest unsaved data may have waited, in seconds: since the last durable generation or the boot, of running VMs with
 * unsaved data and an automatic flush at least every 5 minutes. 0: nothing waits.
 */
export async function maxUnsavedSeconds(tx: Tx): Promise<number> {
  const { rows } = await sql<{ seconds: number }>`
    select coalesce(max(extract(epoch from now() - greatest(d.durable_at, v.started_at))), 0)::float8 as seconds
    from vms v
    join disks d on d.instance_id = v.instance_id and d.epoch = v.epoch
    join instances i on i.id = v.instance_id
    where v.state = 'running' and d.dirty_bytes > 0 and i.auto_flush_seconds <= ${LONGEST_INTERVAL_SECONDS} and not i.deleting`.execute(
    tx,
  );
  return Math.max(0, rows[0]?.seconds ?? 0);
}
