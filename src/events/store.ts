import { sql } from 'kysely';
import type { Db, Tx } from '../db/pool.ts';
import type { EventId, InstanceId, OrgId, UserId } from '../lib/ids.ts';

/** What the outbox hands over of an event: most consumers care for few types, and `data` is the bulk of it. */
export interface PlacedEvent {
  readonly position: number;
  readonly id: EventId;
  readonly org_id: OrgId | null;
  readonly instance_id: InstanceId | null;
  readonly type: string;
}

/** An event that has its place in the one order of all events. */
export interface NumberedEvent extends PlacedEvent {
  /** Of an account event: whose. */
  readonly user_id: UserId | null;
  readonly sequence: number | null;
  readonly data: unknown;
  readonly actor: string;
  readonly created_at: Date;
}

/**
 * Something was seen beyond a position that is missing. Whoever took one of those before `up_to` is among `writers`, or
 * has ended: once all of these have, what is not there up to `up_to` never will be.
 */
export interface Gap {
  readonly up_to: number;
  /** Virtual transactions. */
  readonly writers: ReadonlySet<string>;
}

export interface Settled {
  /** In their order. */
  readonly events: readonly PlacedEvent[];
  /** What to bring along the next time. */
  readonly gap: Gap | undefined;
  /** Events that can be seen are left, behind a position that may still come. */
  readonly is_held_up: boolean;
  /** As many were seen as were asked for: there may be more. */
  readonly is_full: boolean;
}

/**
 * Moves the head on over events that are settled, up to `limit`, and returns them. Its row stays locked until the
 * transaction ends; where another one holds it, the answer is null.
 *
 * A position is taken before its event's commit, so commits come out of order. What follows the head without a gap is
 * settled. Of a gap this is known: a lower position was taken earlier, in a transaction that held the lock of who
 * writes events, and holds it until its end, which is after its commit can be seen. So who can have taken what is
 * missing is asked after the read that misses it, and a read that begins when all of those have ended tells.
 */
export async function takeSettled(tx: Tx, limit: number, known?: Gap): Promise<Settled | null> {
  const head = await tx
    .selectFrom('event_head')
    .select('position')
    .forUpdate()
    .skipLocked()
    .executeTakeFirst();
  if (!head) return null;
  let gap = known === undefined || known.up_to <= head.position ? undefined : await lookAgain(tx, known);
  for (;;) {
    const seen = await eventsAfter(tx, head.position, limit);
    const settled = settledUpTo(head.position, seen, limit, gap);
    const last = seen.at(-1)?.position ?? settled;
    if (last > settled && (gap === undefined || gap.up_to <= settled)) {
      gap = { up_to: last, writers: await writersOfEvents(tx) };
      // All have ended, maybe since the read.
      if (gap.writers.size === 0) continue;
    }
    if (settled > head.position) {
      await tx.updateTable('event_head').set({ position: settled }).execute();
    }
    return {
      events: seen.filter(({ position }) => position <= settled),
      gap: gap && gap.up_to > settled ? gap : undefined,
      is_held_up: last > settled,
      is_full: seen.length === limit,
    };
  }
}

/** Those of its writers that are still at it. Newcomers do not matter, so however many come, it ends. */
async function lookAgain(tx: Tx, { up_to, writers }: Gap): Promise<Gap> {
  if (writers.size === 0) return { up_to, writers };
  const now = await writersOfEvents(tx);
  return { up_to, writers: new Set([...writers].filter((writer) => now.has(writer))) };
}

/** A statement of its own each time: it begins after what was asked before. */
async function eventsAfter(tx: Tx, position: number, limit: number): Promise<readonly PlacedEvent[]> {
  // As the index is of it, which is for this alone.
  const { rows } = await sql<PlacedEvent>`
    select position, id, org_id, instance_id, type from events
    where position + 0 > ${position} order by position + 0 limit ${limit}`.execute(tx);
  return rows;
}

function settledUpTo(
  head: number,
  seen: readonly PlacedEvent[],
  limit: number,
  gap: Gap | undefined,
): number {
  let settled = head;
  if (gap?.writers.size === 0) {
    settled = Math.min(gap.up_to, seen.length < limit ? gap.up_to : (seen.at(-1)?.position ?? head));
  }
  for (const { position } of seen) {
    if (position === settled + 1) settled = position;
  }
  return settled;
}

/** Those of other connections that have written events, or are about to, and have not ended. */
async function writersOfEvents(tx: Tx): Promise<ReadonlySet<string>> {
  const { rows } = await sql<{ writer: string }>`
    select virtualtransaction as writer from pg_locks
    where locktype = 'relation' and relation = 'events'::regclass and mode = 'RowExclusiveLock' and granted
      and database = (select oid from pg_database where datname = current_database())
      and pid is distinct from pg_backend_pid()`.execute(tx);
  return new Set(rows.map(({ writer }) => writer));
}

/** The whole of them, in their order. */
export async function readEvents(tx: Tx, events: readonly PlacedEvent[]): Promise<readonly NumberedEvent[]> {
  if (events.length === 0) return [];
  const { rows } = await sql<NumberedEvent>`
    select position, id, org_id, user_id, instance_id, sequence, type, data, actor, created_at from events
    where id = any(${events.map(({ id }) => id)}::text[])
    order by position`.execute(tx);
  return rows;
}

/** Of one statement: who writes events holds up the head at a gap. */
const CHUNK = 10_000;

/** Removes events older than 30 days that were handed over. */
export async function deleteOldEvents(db: Db): Promise<void> {
  for (;;) {
    const { numAffectedRows } = await sql`
      delete from events where ctid = any(array(
        select ctid from events
        where created_at < now() - interval '30 days' and position <= (select position from event_head)
        limit ${CHUNK}))`.execute(db);
    if ((numAffectedRows ?? 0n) < BigInt(CHUNK)) return;
  }
}
