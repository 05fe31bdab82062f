/**
 * SQL of `generations`: lists and changes the generations of a disk, restores one as a new head, copies one with its
 * chain to a fork, and drops those that retention no longer keeps.
 *
 * A dropped generation (`retained` is false) is hidden. Its row stays as long as later generations are stored as
 * changes to it; then compaction removes the row (compaction-store.ts).
 */
import { sql } from 'kysely';
import type { InstanceId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';

export type GenerationRow = Awaited<ReturnType<typeof listGenerations>>[number];

const SHOWN = [
  ...(['generation', 'created_at', 'bytes', 'consistency', 'name', 'pinned', 'trigger', 'origin'] as const),
  ...(['dirty_bytes', 'segment_count', 'duration_ms'] as const),
] as const;

/** Retained generations below `before`, newest first. */
export async function listGenerations(tx: Tx, instance_id: InstanceId, before: number | null, limit: number) {
  let query = tx
    .selectFrom('generations')
    .select(SHOWN)
    .where('instance_id', '=', instance_id)
    .where('retained', '=', true);
  if (before !== null) query = query.where('generation', '<', before);
  return query.orderBy('generation', 'desc').limit(limit).execute();
}

export async function findRetained(
  tx: Tx,
  instance_id: InstanceId,
  generation: number,
): Promise<GenerationRow | undefined> {
  return tx
    .selectFrom('generations')
    .select(SHOWN)
    .where('instance_id', '=', instance_id)
    .where('generation', '=', generation)
    .where('retained', '=', true)
    .executeTakeFirst();
}

export interface GenerationChange {
  readonly name?: string | null;
  readonly pinned?: boolean;
}

export async function updateGeneration(
  tx: Tx,
  instance_id: InstanceId,
  generation: number,
  change: GenerationChange,
): Promise<void> {
  await tx
    .updateTable('generations')
    .set(change)
    .where('instance_id', '=', instance_id)
    .where('generation', '=', generation)
    .execute();
}

export async function countPinned(tx: Tx, instance_id: InstanceId): Promise<number> {
  const { count } = await tx
    .selectFrom('generations')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('instance_id', '=', instance_id)
    .where('pinned', '=', true)
    .executeTakeFirstOrThrow();
  return count;
}

/**
 * Makes a new head that equals `generation`. New epoch and commit id make every earlier overlay stale, and fence every earlier
 * VM. Returns the head. The caller has locked the instance.
 */
export async function insertRestored(tx: Tx, instance_id: InstanceId, generation: number): Promise<number> {
  const { rows } = await sql<{ generation: number }>`
    with moved as (
      update disks set generation = generation + 1, epoch = epoch + 1, commit_id = gen_random_uuid(), dirty_bytes = 0,
        durable_at = date_trunc('milliseconds', clock_timestamp())
      where instance_id = ${instance_id}
      returning generation, epoch, commit_id, durable_at
    )
    insert into generations
      (instance_id, generation, epoch, commit_id, created_at, bytes, consistency, segments, parent, trigger, origin)
    select ${instance_id}, m.generation, m.epoch, m.commit_id, m.durable_at, 0, g.consistency, '[]', g.generation,
      'restore', jsonb_build_object('instance_id', g.instance_id, 'generation', g.generation)
    from moved m join generations g on g.instance_id = ${instance_id} and g.generation = ${generation}
    returning generation`.execute(tx);
  const [made] = rows;
  if (!made) throw new Error(`${instance_id} has no generation ${generation}`);
  return made.generation;
}

/**
 * Begins the disk of a fork with `generation` of `from`: copies the rows of its chain, only that one retained, and holds every
 * object that `from` holds, because the database does not know which of them the chain's maps name. Compaction releases the
 * others. Reads and writes no object. The caller has locked `from` and inserted `to` with an empty disk.
 */
export async function copyDisk(tx: Tx, from: InstanceId, to: InstanceId, generation: number): Promise<void> {
  await sql`
    with recursive chain as (
      select g.* from generations g where instance_id = ${from} and generation = ${generation}
      union all
      select g.* from chain c join generations g on g.instance_id = ${from} and g.generation = c.parent
      where not coalesce((c.map ->> 'full')::boolean, false)
    )
    insert into generations
      (instance_id, generation, epoch, created_at, bytes, consistency, segments, parent, map, retained, trigger, origin)
    select ${to}, generation, 0, created_at, bytes, consistency, segments,
      case when coalesce((map ->> 'full')::boolean, false) then null else parent end, map, generation = ${generation},
      'fork', jsonb_build_object('instance_id', ${from}::text, 'generation', generation)
    from chain`.execute(tx);
  await sql`
    insert into segment_holders (key, instance_id)
    select key, ${to} from segment_holders where instance_id = ${from}`.execute(tx);
  await sql`
    update disks d set image_version = f.image_version, generation = g.generation, commit_id = g.commit_id, durable_at = g.created_at,
      holds_more = true,
      stored_bytes = (select coalesce(sum(s.size_bytes), 0) from segment_holders h join segments s using (key)
                      where h.instance_id = ${to})
    from disks f, generations g
    where d.instance_id = ${to} and f.instance_id = ${from}
      and g.instance_id = ${to} and g.generation = ${generation}`.execute(tx);
}

/**
 * Drops generations that are not pinned, not among the newest `keep_last`, and not the newest of one of the last
 * `keep_daily_days` days (UTC) that have one. Days are counted, and not compared with the clock, which may jump ahead. The head
 * is always among the newest. Returns how many.
 */
export async function dropOldGenerations(db: Db): Promise<number> {
  const { numAffectedRows } = await sql`
    update generations g set retained = false, name = null
    from (
      select g.instance_id, g.generation, g.created_at, i.keep_last, i.keep_daily_days,
        row_number() over (partition by g.instance_id order by g.generation desc) as nth,
        row_number() over (
          partition by g.instance_id, date_trunc('day', g.created_at, 'UTC') order by g.generation desc
        ) as nth_of_day,
        dense_rank() over (partition by g.instance_id order by date_trunc('day', g.created_at, 'UTC') desc) as nth_day
      from generations g join instances i on i.id = g.instance_id
      where g.retained and not i.deleting
    ) r
    where g.instance_id = r.instance_id and g.generation = r.generation and g.retained and not g.pinned
      and r.nth > r.keep_last
      and not (r.nth_of_day = 1 and r.nth_day <= r.keep_daily_days)`.execute(db);
  return Number(numAffectedRows ?? 0n);
}
