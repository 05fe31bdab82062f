import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { PLANNED_EACH_TIME } from '../db/statement-names.ts';
import type { EventId, NotificationId, OrgId, ServiceAccountId, UserId } from '../lib/ids.ts';
import { KEPT_DAYS, type Kind, REPEATS_WITHIN_S } from './model.ts';

export type Recipient = UserId | ServiceAccountId;

const SHOWN = [
  'id',
  'kind',
  'title',
  'body',
  'resource_type',
  'resource_id',
  'data',
  'count',
  'created_at',
  'read_at',
  'position',
  'event_id',
] as const;

export type NotificationRow = Awaited<ReturnType<typeof listNotifications>>[number];

/**
 * Those of `user_ids` that have an account, held until the transaction's end so that what is raised for them finds
 * them. Always taken before any notification is touched, as the end of an account does.
 */
export async function holdUsers(tx: Tx, user_ids: readonly UserId[]): Promise<Map<UserId, string>> {
  if (user_ids.length === 0) return new Map();
  const rows = await tx
    .selectFrom('users')
    .select(['id', 'email'])
    .where('id', 'in', [...user_ids])
    .orderBy('id')
    .forKeyShare()
    .execute();
  return new Map(rows.map(({ id, email }) => [id, email]));
}

/** As {@link holdUsers}: service accounts with their organisations. */
export async function holdServiceAccounts(
  tx: Tx,
  ids: readonly ServiceAccountId[],
): Promise<Map<ServiceAccountId, OrgId>> {
  if (ids.length === 0) return new Map();
  const rows = await tx
    .selectFrom('service_accounts')
    .select(['id', 'org_id'])
    .where('id', 'in', [...ids])
    .orderBy('id')
    .forKeyShare()
    .execute();
  return new Map(rows.map(({ id, org_id }) => [id, org_id]));
}

export async function membersOf(tx: Tx, org_ids: readonly OrgId[]) {
  if (org_ids.length === 0) return [];
  return tx
    .selectFrom('memberships')
    .select(['org_id', 'user_id', 'role'])
    .where('org_id', 'in', [...org_ids])
    .execute();
}

/** What is to be raised: one for each recipient, kind and resource. */
export interface Raise {
  readonly id: NotificationId;
  readonly recipient: Recipient;
  readonly kind: string;
  readonly title: string;
  readonly body: string;
  readonly resource_type: string | null;
  readonly resource_id: string | null;
  readonly data: Record<string, unknown>;
  readonly count: number;
  readonly position: number;
  readonly event_id: EventId;
  readonly raised_at: string;
  /** False where another mail tells this recipient. */
  readonly mailable: boolean;
  /** Whatever the person has said, and each time: not only when it is new. */
  readonly mail_always: boolean;
}

/**
 * Raises the count of the newest unread notification of the last hour on the same resource, or makes a new one, and
 * puts what goes by mail into the outbox. One that is being read at the same time is waited for: it is either raised
 * while unread, or left read and followed by a new one.
 */
export async function raise(tx: Tx, raises: readonly Raise[]): Promise<void> {
  if (raises.length === 0) return;
  await sql`${sql.raw(PLANNED_EACH_TIME)}
    with wanted as (
      select * from jsonb_to_recordset(${JSON.stringify(raises)}::jsonb) as w(
        id text, recipient text, kind text, title text, body text, resource_type text, resource_id text, data jsonb,
        count bigint, position bigint, event_id text, raised_at timestamptz,
        mailable boolean, mail_always boolean)
    ), repeats as materialized (
      select w.*, (
        select u.id from notifications u
        -- As notifications_repeats has it: any other index would be read for all that is unread.
        where u.recipient || ' ' || u.kind || ' ' || coalesce(u.resource_id, '')
            = w.recipient || ' ' || w.kind || ' ' || coalesce(w.resource_id, '')
          and u.read_at is null
          and u.created_at > w.raised_at - make_interval(secs => ${REPEATS_WITHIN_S})
        order by u.id desc limit 1) as repeated
      from wanted w
    ), raised as (
      update notifications n
      set count = n.count + w.count, title = w.title, body = w.body, data = w.data, position = w.position,
          event_id = w.event_id, raised_at = w.raised_at
      from repeats w
      -- The array says nothing more, but makes the planner look these up instead of reading the whole table.
      where n.read_at is null and n.id = w.repeated
        and n.id = any(array(select r.repeated from repeats r where r.repeated is not null))
      returning w.id as wanted_id, n.id
    ), made as (
      insert into notifications (id, recipient, kind, title, body, resource_type, resource_id, data, count, position,
                                 event_id, created_at, raised_at)
      select id, recipient, kind, title, body, resource_type, resource_id, data, count, position, event_id,
             raised_at, raised_at
      from wanted w where not exists (select 1 from raised r where r.wanted_id = w.id)
      returning id
    ), mailing as (
      select r.id as notification_id, w.* from raised r join wanted w on w.id = r.wanted_id where w.mail_always
      union all
      select m.id, w.* from made m join wanted w on w.id = m.id
    )
    insert into notification_mails (notification_id)
    select g.notification_id from mailing g
    left join notification_preferences p on p.user_id = g.recipient and p.kind = g.kind and not g.mail_always
    where g.recipient like 'usr\\_%' and g.mailable and coalesce(p.mail, true)
    on conflict (notification_id) do update set attempts = 0, due_at = now()`.execute(tx);
}

export async function listNotifications(
  tx: Tx,
  recipient: Recipient,
  status: 'unread' | 'read' | undefined,
  before: string | null,
  limit: number,
) {
  let query = tx.selectFrom('notifications').select(SHOWN).where('recipient', '=', recipient);
  if (status !== undefined) query = query.where('read_at', status === 'unread' ? 'is' : 'is not', null);
  if (before !== null) query = query.where('id', '<', before as NotificationId);
  return query.$narrowType<{ kind: Kind }>().orderBy('id', 'desc').limit(limit).execute();
}

/** Raised after `position`, in that order. */
export async function listRaisedSince(tx: Tx, recipient: Recipient, position: number, limit: number) {
  return tx
    .selectFrom('notifications')
    .select(SHOWN)
    .where('recipient', '=', recipient)
    .where('position', '>', position)
    .$narrowType<{ kind: Kind }>()
    .orderBy('position')
    .limit(limit)
    .execute();
}

/** By counting: it is what it is at this moment. */
export async function countUnread(tx: Tx, recipient: Recipient): Promise<number> {
  const row = await tx
    .selectFrom('notifications')
    .select(sql<number>`count(*)`.as('count'))
    .where('recipient', '=', recipient)
    .where('read_at', 'is', null)
    .executeTakeFirstOrThrow();
  return row.count;
}

/** Read since when it was first so marked. Undefined: no such one of this recipient. */
export async function markOne(
  tx: Tx,
  recipient: Recipient,
  id: NotificationId,
  read: boolean,
): Promise<NotificationRow | undefined> {
  return tx
    .updateTable('notifications')
    .set({
      read_at: read ? sql<Date>`coalesce(read_at, date_trunc('milliseconds', clock_timestamp()))` : null,
    })
    .where('recipient', '=', recipient)
    .where('id', '=', id)
    .returning(SHOWN)
    .$narrowType<{ kind: Kind }>()
    .executeTakeFirst();
}

export type ReadUpTo =
  | { readonly time: Date }
  | { readonly id: NotificationId }
  /** All that are there when the statement begins. */
  | null;

/**
 * Marks what is unread, and answers how many that were. What is raised meanwhile, anew or again, has a later position
 * than the newest that this saw, and stays unread.
 */
export async function markAll(tx: Tx, recipient: Recipient, up_to: ReadUpTo): Promise<number> {
  const newest = await tx
    .selectFrom('notifications')
    .select(sql<number | null>`max(position)`.as('position'))
    .where('recipient', '=', recipient)
    .where('read_at', 'is', null)
    .executeTakeFirstOrThrow();
  if (newest.position === null) return 0;
  let query = tx
    .updateTable('notifications')
    .set({ read_at: sql<Date>`date_trunc('milliseconds', clock_timestamp())` })
    .where('recipient', '=', recipient)
    .where('read_at', 'is', null)
    .where('position', '<=', newest.position);
  if (up_to !== null) {
    query = 'time' in up_to ? query.where('raised_at', '<=', up_to.time) : query.where('id', '<=', up_to.id);
  }
  const changed = await query.executeTakeFirst();
  return Number(changed.numUpdatedRows);
}

/** What the person has said otherwise than by default. */
export async function listPreferences(tx: Tx, user_id: UserId): Promise<Map<string, boolean>> {
  const rows = await tx
    .selectFrom('notification_preferences')
    .select(['kind', 'mail'])
    .where('user_id', '=', user_id)
    .execute();
  return new Map(rows.map(({ kind, mail }) => [kind, mail]));
}

export async function replacePreferences(
  tx: Tx,
  user_id: UserId,
  preferences: readonly { readonly kind: string; readonly mail: boolean }[],
): Promise<void> {
  // One at a time for a person: two replacements at once would meet at the same rows.
  await tx.selectFrom('users').select('id').where('id', '=', user_id).forNoKeyUpdate().execute();
  await tx.deleteFrom('notification_preferences').where('user_id', '=', user_id).execute();
  if (preferences.length === 0) return;
  await tx
    .insertInto('notification_preferences')
    .values(preferences.map((each) => ({ user_id, ...each })))
    .execute();
}

/** For the sweep. */
export async function deleteOldNotifications(tx: Tx): Promise<void> {
  await tx
    .deleteFrom('notifications')
    .where('created_at', '<', sql<Date>`now() - make_interval(days => ${KEPT_DAYS})`)
    .execute();
}
