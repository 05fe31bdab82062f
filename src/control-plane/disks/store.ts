/**
 * SQL of `disks`: reads a disk's head and the layers below it, commits new generations, raises the epoch, records what
 * hosts report, and finds the host where a disk is placed. A commit succeeds only with the present epoch and head.
 *
 * Also SQL of `object_stores`, the mark of this installation's object store, and of `deleted_instances`.
 */
import { randomUUID } from 'node:crypto';
import { type ExpressionBuilder, sql } from 'kysely';
import type { MarkedStore } from '../../object-store/store-mark.ts';
import type {
  BootOrderReport,
  CommitRequest,
  DiskHead,
  LineageRequest,
  LineageResponse,
  MapRef,
  ReportResponse,
  SegmentRef,
} from '../../protocol/types.ts';
import { assert, present } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { GenerationTrigger } from '../db/column-types.ts';
import type { Db, Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';
import { markKeyUsed } from './data-key-store.ts';
import { insertObjects } from './segment-store.ts';

/** Undefined when there is none, or its instance is being deleted. */
export async function findPresentDisk(tx: Tx, instance_id: InstanceId) {
  return tx
    .selectFrom('disks as d')
    .innerJoin('instances as i', 'i.id', 'd.instance_id')
    .select(['d.size_bytes', 'd.epoch', 'd.generation'])
    .where('d.instance_id', '=', instance_id)
    .where('i.deleting', '=', false)
    .executeTakeFirst();
}

/**
 * Takes the lock of the disk's instance until the transaction's end: no commit, restore, fork or deletion happens
 * meanwhile. False when the instance is gone or being deleted.
 */
export async function lockDisk(tx: Tx, instance_id: InstanceId): Promise<boolean> {
  const row = await tx
    .selectFrom('instances')
    .select('deleting')
    .where('id', '=', instance_id)
    .forUpdate()
    .executeTakeFirst();
  return row !== undefined && !row.deleting;
}

/** The durable state of a disk, without its keys. @throws Error when the chain of its generations is broken */
export async function readDisk(
  tx: Tx,
  instance_id: InstanceId,
): Promise<Omit<DiskHead, 'keys' | 'encryption'> | null> {
  const disk = await tx
    .selectFrom('disks')
    .selectAll()
    .where('instance_id', '=', instance_id)
    .executeTakeFirst();
  if (!disk) return null;
  return {
    instance_id,
    size_bytes: disk.size_bytes,
    image_version: disk.image_version,
    generation: disk.generation,
    commit_id: disk.commit_id,
    epoch: disk.epoch,
    durable_at: disk.durable_at === null ? null : rfc3339(disk.durable_at),
    layers: await readLayers(tx, instance_id, disk.generation),
    boot_order: disk.boot_order,
  };
}

/**
 * Notes that the instance is deleted although a host that is lost may still have files of it. When that host is back, it may remove
 * them: an instance that the database merely does not know may be of a later time than the database.
 */
export async function noteDeleted(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx
    .insertInto('deleted_instances')
    .values({ instance_id })
    .onConflict((conflict) => conflict.doNothing())
    .execute();
}

/** False: not deleted, or not known. */
export async function isDeleted(tx: Tx, instance_id: InstanceId): Promise<boolean> {
  const row = await tx
    .selectFrom('deleted_instances')
    .select('instance_id')
    .where('instance_id', '=', instance_id)
    .executeTakeFirst();
  return row !== undefined;
}

/**
 * The layers of a generation, oldest first: of each generation in its chain down to a full map or the image, the map or
 * else the segments. @throws Error when the chain is broken
 */
export async function readLayers(
  tx: Tx,
  instance_id: InstanceId,
  generation: number,
): Promise<(SegmentRef | MapRef)[]> {
  if (generation === 0) return [];
  const { rows } = await sql<ChainRow>`
    with recursive chain as (
      select generation, parent, segments, map from generations
      where instance_id = ${instance_id} and generation = ${generation}
      union all
      select g.generation, g.parent, g.segments, g.map from chain c
      join generations g on g.instance_id = ${instance_id} and g.generation = c.parent
      where not coalesce((c.map ->> 'full')::boolean, false)
    )
    select parent, segments, map from chain order by generation`.execute(tx);
  const oldest = present(rows[0], `generation ${generation} of ${instance_id}`);
  const whole = oldest.parent === null || oldest.map?.full === true;
  assert(whole, `the chain of generation ${generation} of ${instance_id} ends at the image or a full map`);
  return rows.flatMap(({ segments, map }): (SegmentRef | MapRef)[] => (map === null ? segments : [map]));
}

interface ChainRow {
  readonly parent: number | null;
  readonly segments: SegmentRef[];
  readonly map: MapRef | null;
}

export type NewGeneration = Omit<CommitRequest, 'vm_id' | 'commit_id' | 'parent_id'>;

/**
 * The compare-and-swap of a commit: moves the head from generation n-1 to n if the epoch is unchanged and the head is the
 * parent that `by` names. Returns the commit's time, or null when epoch or head have changed.
 */
export async function advanceHead(
  tx: Tx,
  commit: NewGeneration,
  by: Pick<CommitRequest, 'vm_id' | 'commit_id' | 'parent_id'> | null = null,
  trigger: GenerationTrigger = 'request',
): Promise<Date | null> {
  const bytes = totalBytes(commit.segments);
  const commit_id = by?.commit_id ?? randomUUID();
  const row = await tx
    .updateTable('disks')
    .set({
      generation: commit.generation,
      commit_id,
      image_version: commit.image_version,
      durable_at: sql`date_trunc('milliseconds', clock_timestamp())`,
      stored_bytes: sql`stored_bytes + ${bytes}`,
      dirty_bytes: 0,
    })
    .where('instance_id', '=', commit.instance_id)
    .where('epoch', '=', commit.epoch)
    .where('generation', '=', commit.generation - 1)
    .$if(by !== null, (query) => query.where('commit_id', '=', by?.parent_id ?? null))
    .returning('durable_at')
    .executeTakeFirst();
  if (!row) return null;
  const durable_at = present(row.durable_at, 'time of a commit');
  await tx
    .insertInto('generations')
    .values({
      instance_id: commit.instance_id,
      generation: commit.generation,
      commit_id,
      epoch: commit.epoch,
      created_at: durable_at,
      bytes,
      consistency: commit.consistency,
      trigger,
      dirty_bytes: commit.dirty_bytes,
      segment_count: commit.segments.length,
      segments: JSON.stringify(commit.segments),
      parent: commit.generation === 1 ? null : commit.generation - 1,
      map: null,
      name: null,
    })
    .execute();
  await insertObjects(tx, commit.instance_id, commit.segments);
  for (const key_id of keysOf(commit.segments)) await markKeyUsed(tx, commit.instance_id, key_id);
  if (by) {
    const { generation } = commit;
    await tx.updateTable('vms').set({ generation, commit_id }).where('id', '=', by.vm_id).execute();
  }
  return durable_at;
}

/** What is known of the head that a VM's overlay is based on; see {@link LineageResponse}. */
export async function findLineage(
  tx: Tx,
  host_id: HostId,
  { instance_id, vm_id, generation, commit_id }: LineageRequest,
): Promise<LineageResponse> {
  const row = await tx
    .selectFrom('vms')
    .innerJoin('disks', 'disks.instance_id', 'vms.instance_id')
    .select(['vms.generation', 'vms.commit_id', 'disks.commit_id as head_id'])
    .where('vms.id', '=', vm_id)
    .where('vms.instance_id', '=', instance_id)
    .where('vms.host_id', '=', host_id)
    .executeTakeFirst();
  if (!row) return { known: false, continues: false };
  // A VM's commits are sequential: an overlay behind its VM's last commit has only missed that commit's answer.
  const known = row.generation > generation || row.commit_id === commit_id;
  return { known, continues: row.commit_id === row.head_id };
}

/** Fences every earlier VM. The caller has locked the instance. Returns the new epoch. */
export async function raiseEpoch(tx: Tx, instance_id: InstanceId): Promise<number> {
  const { epoch } = await tx
    .updateTable('disks')
    .set({ epoch: sql`epoch + 1` })
    .where('instance_id', '=', instance_id)
    .returning('epoch')
    .executeTakeFirstOrThrow();
  return epoch;
}

/**
 * After the database was restored to an earlier time: new commit ids make every host's overlay stale, and new epochs fence
 * VMs that still run.
 */
export async function invalidateOverlays(tx: Tx): Promise<void> {
  await sql`update disks set commit_id = gen_random_uuid(), epoch = epoch + 1`.execute(tx);
}

/** The ids of the keys that encrypt these segments. */
export function keysOf(segments: readonly SegmentRef[]): ReadonlySet<string> {
  return new Set(segments.flatMap(({ key_id }) => (key_id === null ? [] : [key_id])));
}

export function totalBytes(segments: readonly SegmentRef[]): number {
  return segments.reduce((sum, segment) => sum + segment.size_bytes, 0);
}

export async function findGeneration(tx: Tx, instance_id: InstanceId, generation: number) {
  return tx
    .selectFrom('generations')
    .selectAll()
    .where('instance_id', '=', instance_id)
    .where('generation', '=', generation)
    .executeTakeFirst();
}

/** The newest VM of the disk that `eb` is about, if it is on the host. */
function newestVmOn(eb: ExpressionBuilder<Database, 'disks'>, host_id: HostId) {
  return eb
    .selectFrom('vms')
    .select('vms.id')
    .whereRef('vms.instance_id', '=', 'disks.instance_id')
    .whereRef('vms.epoch', '=', 'disks.epoch')
    .where('vms.host_id', '=', host_id);
}

/** Records which blocks the newest boot read first. `fenced` for an earlier boot. */
export async function recordBootOrder(
  tx: Tx,
  host_id: HostId,
  { instance_id, epoch, blocks }: BootOrderReport,
): Promise<ReportResponse['outcome']> {
  const { numUpdatedRows } = await tx
    .updateTable('disks')
    .set({ boot_order: [...blocks] })
    .where('instance_id', '=', instance_id)
    .where('epoch', '=', epoch)
    .where((eb) => eb.exists(newestVmOn(eb, host_id)))
    .executeTakeFirst();
  return numUpdatedRows > 0n ? 'accepted' : 'fenced';
}

/** Records the dirty bytes of a disk whose newest VM is on the host and not at rest. */
export async function recordDirtyBytes(
  tx: Tx,
  host_id: HostId,
  instance_id: InstanceId,
  dirty_bytes: number,
): Promise<void> {
  await tx
    .updateTable('disks')
    .set({ dirty_bytes })
    .where('instance_id', '=', instance_id)
    .where('dirty_bytes', '!=', dirty_bytes)
    .where((eb) => eb.exists(newestVmOn(eb, host_id).where('vms.state', 'not in', ['stopped', 'suspended'])))
    .execute();
}

/** After a restore: no host has unsaved writes. */
export async function clearAllDirtyBytes(tx: Tx): Promise<void> {
  await tx.updateTable('disks').set({ dirty_bytes: 0 }).where('dirty_bytes', '!=', 0).execute();
}

/** Returns whether this changed the disk's row. Ignores hosts other than that of the newest VM. */
export async function markNearlyFull(
  tx: Tx,
  host_id: HostId,
  instance_id: InstanceId,
  nearly_full: boolean,
): Promise<boolean> {
  const changed = await tx
    .updateTable('disks')
    .set({ nearly_full })
    .where('instance_id', '=', instance_id)
    .where('nearly_full', '!=', nearly_full)
    .where((eb) => eb.exists(newestVmOn(eb, host_id)))
    .executeTakeFirst();
  return changed.numUpdatedRows > 0n;
}

/** Deletes the user_data script once the disk that has run it is durable. */
export async function eraseGivenUserData(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx.deleteFrom('user_data').where('instance_id', '=', instance_id).where('given', '=', true).execute();
}

/** An instance's disk is placed on the host of its newest VM, and on no other. */
export interface DiskPlacement {
  readonly deleting: boolean;
  readonly disk_epoch: number;
  /** Of the newest VM; null when there was none, or its host has released a deleted instance. */
  readonly vm_id: VmId | null;
  readonly host_id: HostId | null;
  readonly state: string | null;
}

/** Undefined when there is no such instance. */
export async function findPlacement(tx: Tx, instance_id: InstanceId): Promise<DiskPlacement | undefined> {
  const { rows } = await sql<DiskPlacement>`
    select i.deleting, d.epoch as disk_epoch, v.id as vm_id, v.host_id, v.state
    from instances i join disks d on d.instance_id = i.id
    left join lateral (
      select id, host_id, state, released from vms where instance_id = i.id order by boot desc limit 1
    ) v on not v.released
    where i.id = ${instance_id}`.execute(tx);
  return rows[0];
}

/** Whether its VM may write, or has unsaved writes. */
export function mayWrite({ deleting, state }: Pick<DiskPlacement, 'deleting' | 'state'>): boolean {
  return !deleting && state !== null && state !== 'stopped' && state !== 'suspended';
}

/** Those of `ids` whose newest VM is on that host. */
export async function placedOn(
  tx: Tx,
  host_id: HostId,
  ids: readonly InstanceId[],
): Promise<ReadonlySet<InstanceId>> {
  if (ids.length === 0) return new Set();
  const { rows } = await sql<{ id: InstanceId }>`
    select i.id from unnest(${[...ids]}::text[]) as i (id)
    join lateral (select host_id from vms where instance_id = i.id order by boot desc limit 1) v
      on v.host_id = ${host_id}`.execute(tx);
  return new Set(rows.map(({ id }) => id));
}

/** The mark of this installation's object store (object-store/store-mark.ts); null until it is written. */
export async function findStoreMark(tx: Tx): Promise<string | null> {
  const row = await tx
    .selectFrom('object_stores')
    .select('id')
    .where('marked_at', 'is not', null)
    .executeTakeFirst();
  return row?.id ?? null;
}

export function knownMarks(db: Db) {
  return {
    /** Of several processes that start at once, the first one's id counts. */
    async intend(id: string): Promise<{ readonly id: string; readonly marked: boolean }> {
      const { rows } = await sql<{ id: string; marked: boolean }>`
        insert into object_stores (id) values (${id})
        on conflict (only_one) do update set only_one = true
        returning id, marked_at is not null as marked`.execute(db);
      return rows[0] ?? { id, marked: false };
    },
    async record(id: string): Promise<void> {
      await db.updateTable('object_stores').set({ marked_at: new Date() }).where('id', '=', id).execute();
    },
  };
}

/** The next store that is used gets a new mark. */
export async function deleteStoreMark(tx: Tx): Promise<void> {
  await tx.deleteFrom('object_stores').execute();
}

/** Claims an object store that was away when the control plane started. Until then nothing in it is used. */
export async function claimStoreOfInstallation(store: MarkedStore): Promise<void> {
  await store.verified();
}
