/**
 * SQL of the tasks `checkpoint-disks` and `compact-disks`: lists the disks that are due, reads the chain of a disk's
 * generations, and replaces maps in this chain.
 *
 * A task writes its objects first. Then one transaction takes the instance's lock, checks that the chain is as the task
 * read it, and replaces rows. If the chain has changed, nothing is replaced, and the new objects are orphans.
 */
import { sql } from 'kysely';
import type { MapRef, SegmentRef } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { endWriting, insertObjects, type WriterId } from './segment-store.ts';
import { findPresentDisk, lockDisk } from './store.ts';

/** A longer chain gets a full map; so does one whose deltas exceed half of the last full map, and this minimum. */
const LINKS_MAX = 32;
const DELTA_BYTES_MIN = 4 * 1024 * 1024;
const ENTRY_BYTES = 40;
/** More dropped links than this are compacted at once; fewer only when the disk had no flush for an hour. */
const DROPPED_MAX = 32;
/** Long enough for nearly any disk; where it was not, `placeCompaction` finds out. After a kill the claim expires. */
const CLAIM_MINUTES = 10;

/** Claims the disk; false when another process has it, or failed on it recently. */
export async function claimDisk(db: Db, instance_id: InstanceId): Promise<boolean> {
  const { numAffectedRows } = await sql`
    update disks set compacting_until = now() + ${CLAIM_MINUTES} * interval '1 minute'
    where instance_id = ${instance_id} and (compacting_until is null or compacting_until < now())`.execute(
    db,
  );
  return numAffectedRows === 1n;
}

export async function releaseDisk(db: Db, instance_id: InstanceId): Promise<void> {
  await sql`update disks set compacting_until = null where instance_id = ${instance_id}`.execute(db);
}

/** Disks whose head is expensive to read, longest chain first, so that under overload each gets its turn. */
export async function listLongChains(db: Db, limit: number): Promise<InstanceId[]> {
  const { rows } = await sql<{ instance_id: InstanceId }>`
    with recursive chain as (
      select d.instance_id, g.generation, g.parent, g.segments, g.map
      from disks d join instances i on i.id = d.instance_id and not i.deleting
      join generations g on g.instance_id = d.instance_id and g.generation = d.generation
      where d.compacting_until is null or d.compacting_until < now()
      union all
      select c.instance_id, g.generation, g.parent, g.segments, g.map
      from chain c join generations g on g.instance_id = c.instance_id and g.generation = c.parent
      where not coalesce((c.map ->> 'full')::boolean, false)
    ), weight as (
      select instance_id,
        coalesce((map ->> 'full')::boolean, false) as is_full,
        coalesce((map ->> 'size_bytes')::bigint,
          (select coalesce(sum((s ->> 'entries')::bigint), 0) from jsonb_array_elements(segments) s) * ${ENTRY_BYTES}
        ) as bytes
      from chain
    )
    select instance_id from weight group by instance_id
    having count(*) filter (where not is_full) > ${LINKS_MAX}
      or coalesce(sum(bytes) filter (where not is_full), 0)
        > greatest(coalesce(sum(bytes) filter (where is_full), 0) / 2, ${DELTA_BYTES_MIN})
    order by count(*) desc, instance_id limit ${limit}`.execute(db);
  return rows.map(({ instance_id }) => instance_id);
}

/** Disks with links or objects that no retained generation needs, most first, for the same reason. */
export async function listWasteful(db: Db, limit: number): Promise<InstanceId[]> {
  const { rows } = await sql<{ instance_id: InstanceId }>`
    with dropped as (
      select instance_id, count(*) as links from generations where not retained group by instance_id
    )
    select d.instance_id from disks d
    join instances i on i.id = d.instance_id and not i.deleting
    left join dropped using (instance_id)
    where (d.compacting_until is null or d.compacting_until < now())
      and (dropped.links > ${DROPPED_MAX}
        or (d.durable_at < now() - interval '1 hour' and dropped.links > 0)
        or (d.holds_more and i.created_at < now() - interval '1 hour'))
    order by coalesce(dropped.links, 0) desc, d.instance_id limit ${limit}`.execute(db);
  return rows.map(({ instance_id }) => instance_id);
}

export interface Link {
  readonly generation: number;
  readonly parent: number | null;
  readonly segments: readonly SegmentRef[];
  readonly map: MapRef | null;
  readonly retained: boolean;
}

export interface DiskLinks {
  readonly instance_id: InstanceId;
  readonly size_bytes: number;
  readonly epoch: number;
  /** The head at the time of reading. */
  readonly generation: number;
  /** All links up to the head, oldest first. */
  readonly links: readonly Link[];
  /** Objects that the instance held before the links were read. */
  readonly held: readonly HeldObject[];
}

export interface HeldObject {
  readonly key: string;
  readonly size_bytes: number;
  /** Another instance also holds it. */
  readonly shared: boolean;
}

/** Null when the instance is being deleted, or has no generation. */
export async function readLinks(db: Db, instance_id: InstanceId): Promise<DiskLinks | null> {
  const { rows: held } = await sql<HeldObject>`
    select s.key, s.size_bytes, exists (
      select from segment_holders o where o.key = h.key and o.instance_id <> h.instance_id) as shared
    from segment_holders h join segments s using (key)
    where h.instance_id = ${instance_id}`.execute(db);
  const disk = await findPresentDisk(db, instance_id);
  if (!disk || disk.generation === 0) return null;
  const { size_bytes, epoch, generation } = disk;
  const links = await readRows(db, instance_id, generation);
  return { instance_id, size_bytes, epoch, generation, links, held };
}

async function readRows(tx: Tx, instance_id: InstanceId, up_to: number): Promise<Link[]> {
  return tx
    .selectFrom('generations')
    .select(['generation', 'parent', 'segments', 'map', 'retained'])
    .where('instance_id', '=', instance_id)
    .where('generation', '<=', up_to)
    .orderBy('generation')
    .execute();
}

/** The layers of a generation, oldest first, as `readLayers` reads them from the database. */
export function layersOf(links: readonly Link[], generation: number): (SegmentRef | MapRef)[] {
  const by_number = new Map(links.map((link) => [link.generation, link]));
  const layers: (SegmentRef | MapRef)[] = [];
  for (let at: number | null = generation; at !== null; ) {
    const link: Link = present(by_number.get(at), `generation ${at}`);
    layers.unshift(...(link.map ? [link.map] : link.segments));
    at = link.map?.full ? null : link.parent;
  }
  return layers;
}

/** A written object that the instance will hold. */
export interface NewObject {
  readonly key: string;
  readonly size_bytes: number;
  readonly entries: number;
}

export interface PlacedMap {
  readonly generation: number;
  readonly parent: number | null;
  readonly map: MapRef;
}

/** Replaces the head's segments by a full map. False when the chain has changed since `before`, or the map may be gone. */
export async function placeCheckpoint(
  db: Db,
  before: DiskLinks,
  writer: WriterId,
  map: MapRef & NewObject,
): Promise<boolean> {
  const { instance_id, generation } = before;
  return transaction(db, async (tx) => {
    if (!(await isUnchanged(tx, before))) return false;
    if (!(await endWriting(tx, writer))) return false;
    await placeMap(tx, instance_id, { generation, parent: parentOf(before, generation), map });
    await insertObjects(tx, instance_id, [map]);
    await countStored(tx, instance_id);
    return true;
  });
}

export interface Compaction {
  /** One for each retained generation, oldest first. */
  readonly maps: readonly PlacedMap[];
  readonly added: readonly NewObject[];
  /** Objects that no generation up to the head of `before` needs. */
  readonly dead: readonly string[];
}

/**
 * Makes the retained generations consist of `maps` and deletes all others up to the head of `before`. Later generations
 * stay on top. This instance releases the dead objects; an object without a holder is removed later (`free-segments`). False
 * when the chain has changed, or the added objects may be gone.
 */
export async function placeCompaction(
  db: Db,
  before: DiskLinks,
  writer: WriterId,
  { maps, added, dead }: Compaction,
): Promise<boolean> {
  const { instance_id, generation: head } = before;
  const kept = maps.map(({ generation }) => generation);
  return transaction(db, async (tx) => {
    if (!(await isUnchanged(tx, before))) return false;
    if (await isBuiltOn(tx, instance_id, head, kept)) return false;
    if (!(await endWriting(tx, writer))) return false;
    for (const map of maps) await placeMap(tx, instance_id, map);
    await sql`
      delete from generations where instance_id = ${instance_id} and generation <= ${head}
        and generation <> all(${kept}::bigint[])`.execute(tx);
    await insertObjects(tx, instance_id, added);
    await sql`
      delete from segment_holders where instance_id = ${instance_id} and key = any(${[...dead]}::text[])`.execute(
      tx,
    );
    await sql`update disks set holds_more = false where instance_id = ${instance_id}`.execute(tx);
    await countStored(tx, instance_id);
    return true;
  });
}

/** Takes the instance's lock, so that the chain stays unchanged until the transaction's end. */
async function isUnchanged(tx: Tx, before: DiskLinks): Promise<boolean> {
  if (!(await lockDisk(tx, before.instance_id))) return false;
  const rows = await readRows(tx, before.instance_id, before.generation);
  return JSON.stringify(rows.map(chainPart)) === JSON.stringify(before.links.map(chainPart));
}

function chainPart({ generation, parent, segments, map }: Link): unknown {
  return [generation, parent, map?.key ?? null, segments.map(({ key }) => key)];
}

/**
 * Whether a newer generation needs what would be replaced. It follows one that would be deleted: a restore to it came after
 * `before` was read. Or it has a map, which may name dead objects: another task made it, after the claim of this one expired.
 */
async function isBuiltOn(
  tx: Tx,
  instance_id: InstanceId,
  head: number,
  kept: readonly number[],
): Promise<boolean> {
  const { rows } = await sql`
    select from generations where instance_id = ${instance_id} and generation > ${head}
      and (map is not null or (parent <= ${head} and parent <> all(${[...kept]}::bigint[]))) limit 1`.execute(
    tx,
  );
  return rows.length > 0;
}

function parentOf({ links }: DiskLinks, generation: number): number | null {
  return present(
    links.find((link) => link.generation === generation),
    'a link',
  ).parent;
}

/** The segments stay in the row, to recognise a repeated commit. */
async function placeMap(
  tx: Tx,
  instance_id: InstanceId,
  { generation, parent, map: { key, size_bytes, full, key_id } }: PlacedMap,
): Promise<void> {
  await tx
    .updateTable('generations')
    .set({ parent, map: JSON.stringify({ key, size_bytes, full, key_id }) })
    .where('instance_id', '=', instance_id)
    .where('generation', '=', generation)
    .execute();
}

async function countStored(tx: Tx, instance_id: InstanceId): Promise<void> {
  await sql`
    update disks set stored_bytes = (
      select coalesce(sum(s.size_bytes), 0) from segment_holders h join segments s using (key)
      where h.instance_id = ${instance_id})
    where instance_id = ${instance_id}`.execute(tx);
}
