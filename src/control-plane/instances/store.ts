/**
 * SQL of instances: finds, lists, locks, inserts, changes and removes them. An `InstanceRow` is an instance with its
 * disk and its newest VM. `SavedHead` is the head of a disk as the database has it; receipts of flushes and the ends of
 * stops are made of nothing else.
 */
import { type Selectable, sql } from 'kysely';
import { assert, present } from '../../shared/assert.ts';
import type { EgressMode } from '../../shared/egress-policy.ts';
import type { HostId, InstanceId, OrgId } from '../../shared/ids.ts';
import type { RestartPolicy } from '../../shared/restart-policy.ts';
import type { ForkedFrom } from '../db/column-types.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';
import { releaseAddress } from './ssh-address-store.ts';

/** An instance with its disk and its newest VM (null before the first start). */
export type InstanceRow = Awaited<ReturnType<typeof getInstance>> & object;

function withParts(tx: Tx) {
  return tx
    .selectFrom('instances as i')
    .innerJoin('disks as d', 'd.instance_id', 'i.id')
    .leftJoinLateral(
      (eb) =>
        eb
          .selectFrom('vms')
          .selectAll()
          .whereRef('vms.instance_id', '=', 'i.id')
          .orderBy('vms.boot', 'desc')
          .limit(sql<number>`1`)
          .as('v'),
      (join) => join.onTrue(),
    )
    .selectAll('i')
    .select([
      'd.size_bytes',
      'd.generation',
      'd.durable_at',
      'd.dirty_bytes',
      'd.stored_bytes',
      'd.growth',
      'd.epoch as disk_epoch',
      'd.image_version as disk_image_version',
      'v.id as vm_id',
      'v.boot',
      'v.epoch as vm_epoch',
      'v.host_id',
      'v.state',
      'v.reason_code',
      'v.reason_message',
      'v.reason_actor',
      'v.ssh_address',
      'v.started_at',
      'v.stopped_at',
      'v.version as vm_version',
      'v.move',
    ]);
}

export async function findInstance(tx: Tx, org_id: OrgId, id: InstanceId): Promise<InstanceRow | undefined> {
  return withParts(tx).where('i.id', '=', id).where('i.org_id', '=', org_id).executeTakeFirst();
}

/** Of any organisation: for agents' reports and tasks. */
export async function getInstance(tx: Tx, id: InstanceId) {
  return withParts(tx).where('i.id', '=', id).executeTakeFirst();
}

/** Locks the row until the transaction's end: this serialises all calls on the instance. `org_id`: only if it is that organisation's. */
export async function lockInstance(tx: Tx, id: InstanceId, org_id?: OrgId): Promise<boolean> {
  const row = await tx
    .selectFrom('instances')
    .select('id')
    .where('id', '=', id)
    .$if(org_id !== undefined, (query) => query.where('org_id', '=', org_id as OrgId))
    .forUpdate()
    .executeTakeFirst();
  return row !== undefined;
}

export interface InstanceFilter {
  readonly name?: string;
  /** All must match: `key=value`, or `key` alone. */
  readonly label?: readonly string[];
  readonly state?: string;
}

export async function listInstances(
  tx: Tx,
  org_id: OrgId,
  filter: InstanceFilter,
  before: string | null,
  limit: number,
) {
  let query = withParts(tx).where('i.org_id', '=', org_id);
  if (before !== null) {
    // Twice, so that a merge join also begins there in the index of disks.
    query = query.where('i.id', '<', before as InstanceId).where('d.instance_id', '<', before as InstanceId);
  }
  if (filter.name !== undefined) query = query.where('i.name', '=', filter.name);
  if (filter.state !== undefined) query = query.where(sql`coalesce(v.state, 'stopped')`, '=', filter.state);
  // Nearly all are stopped. Those in another state are found by their boots.
  if (filter.state !== undefined && filter.state !== 'stopped') {
    query = query.where(
      sql<boolean>`i.id in (select instance_id from vms where state <> 'stopped' and state = ${filter.state})`,
    );
  }
  // There is no index of labels (docs/measurements/usage.md): the organisation's is read until the page is full.
  for (const [key, value] of (filter.label ?? []).map(splitLabel)) {
    query =
      value === undefined
        ? query.where(sql<boolean>`i.labels ? ${key}`)
        : query.where(sql<boolean>`i.labels @> ${JSON.stringify({ [key]: value })}::jsonb`);
  }
  return query.orderBy('i.id', 'desc').limit(limit).execute();
}

function splitLabel(label: string): [string, string | undefined] {
  const at = label.indexOf('=');
  return at === -1 ? [label, undefined] : [label.slice(0, at), label.slice(at + 1)];
}

export type NewInstance = Selectable<
  Pick<
    Database['instances'],
    | 'id'
    | 'org_id'
    | 'created_by'
    | 'name'
    | 'image'
    | 'cpus'
    | 'memory_mib'
    | 'disk_gib'
    | 'idle_timeout_seconds'
    | 'wake_on_connect'
    | 'auto_flush_seconds'
    | 'ssh_port'
  >
> & {
  restart: RestartPolicy;
  egress_mode: EgressMode;
  egress_allow: readonly string[];
  host_labels: Record<string, string>;
  tolerations: readonly string[];
  ssh_host: string;
  forked_from: ForkedFrom | null;
  labels: Record<string, string>;
  keep_last: number;
  keep_daily_days: number;
  user_data: string | null;
};

export async function insertInstance(tx: Tx, { user_data, ...instance }: NewInstance): Promise<void> {
  await tx
    .insertInto('instances')
    .values({
      ...instance,
      labels: JSON.stringify(instance.labels),
      egress_allow: [...instance.egress_allow],
      host_labels: JSON.stringify(instance.host_labels),
      tolerations: [...instance.tolerations],
      forked_from: instance.forked_from && JSON.stringify(instance.forked_from),
      host_keys: null,
    })
    .execute();
  await tx
    .insertInto('disks')
    .values({
      instance_id: instance.id,
      size_bytes: instance.disk_gib * 2 ** 30,
      image_version: null,
      durable_at: null,
    })
    .execute();
  if (user_data === null) return;
  await tx.insertInto('user_data').values({ instance_id: instance.id, script: user_data }).execute();
}

export interface InstanceChange {
  readonly name?: string;
  readonly labels?: Record<string, string>;
  readonly idle_timeout_seconds?: number | null;
  readonly wake_on_connect?: boolean;
  readonly restart?: RestartPolicy;
  readonly auto_flush_seconds?: number | null;
  readonly keep_last?: number;
  readonly keep_daily_days?: number;
  readonly egress_mode?: EgressMode;
  readonly egress_allow?: readonly string[];
  readonly host_labels?: Record<string, string>;
  readonly tolerations?: readonly string[];
  readonly cpus?: number;
  readonly memory_mib?: number;
  readonly disk_gib?: number;
}

export async function updateInstance(tx: Tx, id: InstanceId, change: InstanceChange): Promise<void> {
  const { labels, egress_allow, host_labels, tolerations, ...rest } = change;
  await tx
    .updateTable('instances')
    .set({
      ...rest,
      ...(labels === undefined ? {} : { labels: JSON.stringify(labels) }),
      ...(egress_allow === undefined ? {} : { egress_allow: [...egress_allow] }),
      ...(host_labels === undefined ? {} : { host_labels: JSON.stringify(host_labels) }),
      ...(tolerations === undefined ? {} : { tolerations: [...tolerations] }),
      version: sql`version + 1`,
      updated_at: sql`now()`,
    })
    .where('id', '=', id)
    .execute();
  if (change.idle_timeout_seconds === undefined) return;
  // A new timeout starts now.
  await tx
    .updateTable('vms')
    .set({ active_at: sql`now()` })
    .where('instance_id', '=', id)
    .where('state', 'in', ['running', 'restarting'])
    .execute();
}

/** Whether a host can restrict the egress of its VMs. */
export async function enforcesEgress(tx: Tx, host_id: HostId): Promise<boolean> {
  const host = await tx.selectFrom('hosts').select('facts').where('id', '=', host_id).executeTakeFirst();
  return host?.facts?.enforces_egress === true;
}

/** Stored objects stay as they are: past its old end the disk reads as zeroes. */
export async function growDisk(tx: Tx, id: InstanceId, disk_gib: number): Promise<void> {
  await tx
    .updateTable('disks')
    .set({ size_bytes: disk_gib * 2 ** 30, growth: 'next_boot' })
    .where('instance_id', '=', id)
    .execute();
}

/** The guest's root file system has grown to `size_bytes`. Does nothing if the disk was increased again. */
export async function markGrown(tx: Tx, id: InstanceId, size_bytes: number): Promise<void> {
  await tx
    .updateTable('disks')
    .set({ growth: 'done' })
    .where('instance_id', '=', id)
    .where('size_bytes', '=', size_bytes)
    .where('growth', '=', 'next_boot')
    .execute();
}

export async function markDeleting(tx: Tx, id: InstanceId): Promise<void> {
  await tx
    .updateTable('instances')
    .set({ deleting: true, version: sql`version + 1`, updated_at: sql`now()` })
    .where('id', '=', id)
    .execute();
}

/** Deletes the instance's row, and returns its SSH address. */
export async function removeInstance(tx: Tx, id: InstanceId): Promise<void> {
  const ran = await tx
    .selectFrom('vms')
    .select('id')
    .where('instance_id', '=', id)
    .where('started_at', 'is not', null)
    .limit(1)
    .executeTakeFirst();
  const address = await tx
    .deleteFrom('instances')
    .where('id', '=', id)
    .returning(['ssh_host as host', 'ssh_port as port'])
    .executeTakeFirst();
  if (address) await releaseAddress(tx, address, ran !== undefined);
}

export async function setHostKeys(
  tx: Tx,
  id: InstanceId,
  host_keys: Database['instances']['host_keys']['__select__'],
): Promise<void> {
  await tx
    .updateTable('instances')
    .set({ host_keys: host_keys && JSON.stringify(host_keys) })
    .where('id', '=', id)
    .execute();
}

/** The instances that are not being deleted. */
export async function listPresent(tx: Tx): Promise<InstanceId[]> {
  const rows = await tx
    .selectFrom('instances')
    .select('id')
    .where('deleting', '=', false)
    .orderBy('id')
    .execute();
  return rows.map(({ id }) => id);
}

/** Deleted instances that every host has released. */
export async function listFreed(tx: Tx): Promise<{ id: InstanceId; org_id: OrgId; name: string }[]> {
  return tx
    .selectFrom('instances as i')
    .select(['i.id', 'i.org_id', 'i.name'])
    .where('i.deleting', '=', sql.lit(true))
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom('vms as v')
            .select('v.id')
            .whereRef('v.instance_id', '=', 'i.id')
            .where('v.released', '=', false),
        ),
      ),
    )
    .execute();
}

/** Who asked for the flush that runs now; undefined: none that was asked for runs. */
export async function findFlushRequester(tx: Tx, instance_id: InstanceId): Promise<string | undefined> {
  const running = await tx
    .selectFrom('flushes')
    .select('requested_by')
    .where('instance_id', '=', instance_id)
    .where('state', '=', 'running')
    .executeTakeFirst();
  return running?.requested_by;
}

/**
 * A disk's head as the database has it: all of it is durable. Receipts and the ends of stops need one as proof, and only a read of
 * the database makes one.
 */
export class SavedHead {
  readonly commit_id: string;
  readonly generation: number;
  /** null: the image, which was never written to. */
  readonly durable_at: Date | null;
  /** Makes the type nominal: no other object passes for one. */
  readonly #read = true;

  private constructor(row: { commit_id: string; generation: number; durable_at: Date | null }) {
    this.commit_id = row.commit_id;
    this.generation = row.generation;
    this.durable_at = row.durable_at;
    assert(this.#read, 'it was read');
  }

  /** Undefined when there is no such disk. */
  static async find(tx: Tx, instance_id: InstanceId): Promise<SavedHead | undefined> {
    const row = await tx
      .selectFrom('disks')
      .select(['commit_id', 'generation', 'durable_at'])
      .where('instance_id', '=', instance_id)
      .executeTakeFirst();
    return row && new SavedHead(row);
  }

  static async read(tx: Tx, instance_id: InstanceId): Promise<SavedHead> {
    return present(await SavedHead.find(tx, instance_id), 'disk of an instance');
  }
}
