/**
 * SQL of notifications, of users' preferences, and of digests (the notifications that wait to be composed into one
 * mail).
 */
import { sql } from 'kysely';
import { present } from '../../shared/assert.ts';
import {
  type EventId,
  isId,
  type NotificationId,
  type OrgId,
  type ServiceAccountId,
  type UserId,
} from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import {
  isMailedApart,
  KEPT_DAYS,
  KIND_NAMES,
  type NotificationKind,
  RAISED_ONCE,
  REPEATS_WITHIN_S,
} from './model.ts';

export type Recipient = UserId | ServiceAccountId;

/** A caller of the notification API. */
export interface NotificationReader {
  readonly recipient: Recipient;
  /** Restricts it to notifications of the account and of this organisation; null: no restriction. */
  readonly within: OrgId | null;
}

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

/** The people to look up for a batch of notifications. */
export interface PeopleQuery {
  readonly org_ids: readonly OrgId[];
  /** Members with a role: organisation, space, role. */
  readonly roles: readonly string[];
  readonly user_ids: readonly UserId[];
  readonly service_account_ids: readonly ServiceAccountId[];
}

export interface People {
  /** The roles of an organisation's members. */
  readonly members: ReadonlyMap<OrgId, ReadonlyMap<UserId, string>>;
  /** Addresses of the users that exist; null: not confirmed, so it may be somebody else's. */
  readonly users: ReadonlyMap<UserId, string | null>;
  readonly service_accounts: ReadonlyMap<ServiceAccountId, OrgId>;
}

type PeopleRow =
  | { readonly of: 'member'; readonly org_id: OrgId; readonly id: UserId; readonly says: string }
  | { readonly of: 'user'; readonly id: UserId; readonly says: string | null }
  | { readonly of: 'service_account'; readonly org_id: OrgId; readonly id: ServiceAccountId };

/**
 * Locks users and service accounts until the transaction ends: notifications have no foreign key. Called before any
 * notification is locked, which is the order of the deletion of an account, too.
 */
export async function lockPeople(
  tx: Tx,
  { org_ids, roles, user_ids, service_account_ids }: PeopleQuery,
): Promise<People> {
  const { rows } = await sql<PeopleRow>`
    with members as materialized (
      select org_id, user_id, role from memberships where org_id = any(${org_ids}::text[])
    ), people as materialized (
      select id, case when email_confirmed then email end as email from users
      where id = any(${user_ids}::text[] || array(
        select user_id from members
        where org_id || ' ' || role = any(${roles}::text[])))
      order by id for key share
    ), accounts as materialized (
      select id, org_id from service_accounts where id = any(${service_account_ids}::text[]) order by id for key share
    )
    select 'user' as of, null as org_id, id, email as says from people
    union all select 'service_account', org_id, id, null from accounts
    union all select 'member', org_id, user_id, role from members`.execute(tx);
  const members = new Map<OrgId, Map<UserId, string>>();
  const users = new Map<UserId, string | null>();
  const service_accounts = new Map<ServiceAccountId, OrgId>();
  for (const row of rows) {
    if (row.of === 'user') users.set(row.id, row.says);
    else if (row.of === 'service_account') service_accounts.set(row.id, row.org_id);
    else members.set(row.org_id, (members.get(row.org_id) ?? new Map()).set(row.id, row.says));
  }
  return { members, users, service_accounts };
}

/** A notification to insert or to repeat: at most one for each recipient, kind and resource. */
export interface Raise {
  readonly id: NotificationId;
  readonly recipient: Recipient;
  /** The organisation that it concerns; null: the account. */
  readonly org_id: OrgId | null;
  readonly kind: NotificationKind;
  readonly title: string;
  readonly body: string;
  readonly resource_type: string | null;
  readonly resource_id: string | null;
  readonly data: Record<string, unknown>;
  readonly count: number;
  readonly position: number;
  readonly event_id: EventId;
  readonly raised_at: string;
  /** False if the recipient gets another mail about it, or has no confirmed address. */
  readonly mailable: boolean;
  /** Mails each repeat, and ignores preferences. */
  readonly mail_always: boolean;
}

/**
 * Raises the count of the newest unread notification of the last hour on the same resource, or inserts a new one. One
 * that is read at the same time is waited for: it is either raised while unread, or left read and followed by a new one.
 */
export async function raise(tx: Tx, raises: readonly Raise[]): Promise<void> {
  const repeated = await raiseRepeated(tx, await findRepeated(tx, raises));
  const fresh = raises.filter(({ id }) => !repeated.has(id));
  const muted = await findMuted(tx, fresh);
  const isMailed = ({ recipient, kind, mailable, mail_always }: Raise) =>
    mailable && isId('usr', recipient) && (mail_always || !muted.has(muting(recipient, kind)));
  await insertNotifications(
    tx,
    fresh.map((each) => ({ ...each, mail_after: isMailed(each) ? each.raised_at : null })),
  );
}

/** A raise that repeats the notification `repeated`. */
interface Repeat extends Raise {
  readonly repeated: NotificationId;
}

/** The expression of the index `notifications_repeats`; with any other, all unread notifications are read. */
const REPEATS_KEY = sql`n.recipient || ' ' || n.kind || ' ' || coalesce(n.resource_id, '')`;
const MAY_REPEAT = sql`n.read_at is null and n.kind <> ${sql.lit(RAISED_ONCE)}`;
const keyOf = ({ recipient, kind, resource_id }: Raise) => `${recipient} ${kind} ${resource_id ?? ''}`;

async function findRepeated(tx: Tx, raises: readonly Raise[]): Promise<Repeat[]> {
  const asked = raises.filter(({ kind }) => kind !== RAISED_ONCE);
  if (asked.length === 0) return [];
  const { rows } = await sql<{ at: number; id: NotificationId }>`
    select w.at, found.id
    from unnest(${asked.map(keyOf)}::text[], ${asked.map(({ raised_at }) => raised_at)}::timestamptz[])
      with ordinality as w (key, raised_at, at)
    cross join lateral (
      select n.id from notifications n
      where ${REPEATS_KEY} = w.key and ${MAY_REPEAT}
        and n.created_at > w.raised_at - make_interval(secs => ${REPEATS_WITHIN_S})
      order by n.id desc limit 1) found`.execute(tx);
  return rows.map(({ at, id }) => ({ ...present(asked[at - 1], 'the raise'), repeated: id }));
}

/** Returns the ids of the raises that were repeats. A repeat is mailed only if its kind is always mailed. */
async function raiseRepeated(tx: Tx, repeats: readonly Repeat[]): Promise<ReadonlySet<NotificationId>> {
  if (repeats.length === 0) return new Set();
  const raised = repeats.map((each) => ({
    ...each,
    mail_after: each.mailable && each.mail_always && isId('usr', each.recipient) ? each.raised_at : null,
  }));
  const { rows } = await sql<{ id: NotificationId }>`
    update notifications n
    set count = n.count + w.count, title = w.title, body = w.body, data = w.data, position = w.position,
        event_id = w.event_id, raised_at = w.raised_at, mail_after = greatest(n.mail_after, w.mail_after)
    from jsonb_to_recordset(${JSON.stringify(raised)}::jsonb) as w(
      id text, repeated text, recipient text, title text, body text, data jsonb, count bigint, position bigint,
      event_id text, raised_at timestamptz, mail_after timestamptz)
    where n.recipient = w.recipient and n.id = w.repeated and ${MAY_REPEAT}
      -- Redundant; makes the planner use the index instead of reading the whole table.
      and ${REPEATS_KEY} = any(${repeats.map(keyOf)}::text[])
      and n.id = any(${repeats.map(({ repeated }) => repeated)}::text[])
    returning w.id`.execute(tx);
  return new Set(rows.map(({ id }) => id));
}

async function insertNotifications(
  tx: Tx,
  fresh: readonly (Raise & { readonly mail_after: string | null })[],
): Promise<void> {
  if (fresh.length === 0) return;
  await sql`
    insert into notifications (id, recipient, org_id, kind, title, body, resource_type, resource_id, data, count,
                               position, event_id, created_at, raised_at, mail_after)
    select id, recipient, org_id, kind, title, body, resource_type, resource_id, data, count, position, event_id,
           raised_at, raised_at, mail_after
    from jsonb_to_recordset(${JSON.stringify(fresh)}::jsonb) as w(
      id text, recipient text, org_id text, kind text, title text, body text, resource_type text, resource_id text, data jsonb,
      count bigint, position bigint, event_id text, raised_at timestamptz, mail_after timestamptz)`.execute(
    tx,
  );
}

/** Which of these kinds their recipients have muted. */
async function findMuted(tx: Tx, raises: readonly Raise[]): Promise<ReadonlySet<string>> {
  const asked = new Set(
    raises.flatMap(({ recipient, mailable, mail_always }) =>
      mailable && !mail_always && isId('usr', recipient) ? [recipient] : [],
    ),
  );
  if (asked.size === 0) return new Set();
  const rows = await tx
    .selectFrom('notification_preferences')
    .select(['user_id', 'kind'])
    .where('user_id', 'in', [...asked])
    .where('mail', '=', false)
    .execute();
  return new Set(rows.map(({ user_id, kind }) => muting(user_id, kind)));
}

const muting = (recipient: Recipient, kind: string) => `${recipient} ${kind}`;

/** Selects the notifications that the reader may see and mark. */
function seenBy({ recipient, within }: NotificationReader) {
  return within === null
    ? sql<boolean>`recipient = ${recipient}`
    : sql<boolean>`recipient = ${recipient} and (org_id is null or org_id = ${within})`;
}

export async function listNotifications(
  tx: Tx,
  reader: NotificationReader,
  status: 'unread' | 'read' | undefined,
  before: string | null,
  limit: number,
) {
  let query = tx.selectFrom('notifications').select(SHOWN).where(seenBy(reader));
  if (status !== undefined) query = query.where('read_at', status === 'unread' ? 'is' : 'is not', null);
  if (before !== null) query = query.where('id', '<', before as NotificationId);
  return query.$narrowType<{ kind: NotificationKind }>().orderBy('id', 'desc').limit(limit).execute();
}

/** Notifications raised after `position`, in the order of positions. */
export async function listRaisedSince(tx: Tx, reader: NotificationReader, position: number, limit: number) {
  return tx
    .selectFrom('notifications')
    .select(SHOWN)
    .where(seenBy(reader))
    .where('position', '>', position)
    .$narrowType<{ kind: NotificationKind }>()
    .orderBy('position')
    .limit(limit)
    .execute();
}

export async function countUnread(tx: Tx, reader: NotificationReader): Promise<number> {
  const row = await tx
    .selectFrom('notifications')
    .select(sql<number>`count(*)`.as('count'))
    .where(seenBy(reader))
    .where('read_at', 'is', null)
    .executeTakeFirstOrThrow();
  return row.count;
}

/** Keeps the time of the first mark. Undefined: the reader has no such notification. */
export async function markOne(
  tx: Tx,
  reader: NotificationReader,
  id: NotificationId,
  read: boolean,
): Promise<NotificationRow | undefined> {
  return tx
    .updateTable('notifications')
    .set({
      read_at: read ? sql<Date>`coalesce(read_at, date_trunc('milliseconds', clock_timestamp()))` : null,
    })
    .where(seenBy(reader))
    .where('id', '=', id)
    .returning(SHOWN)
    .$narrowType<{ kind: NotificationKind }>()
    .executeTakeFirst();
}

export type ReadUpTo =
  | { readonly time: Date }
  | { readonly id: NotificationId }
  /** All that exist when the statement begins. */
  | null;

/**
 * Marks unread notifications, and returns how many. A notification that is raised meanwhile, also as a repeat, has a
 * later position than the newest one seen here, and stays unread.
 */
export async function markAll(tx: Tx, reader: NotificationReader, up_to: ReadUpTo): Promise<number> {
  const newest = await tx
    .selectFrom('notifications')
    .select(sql<number | null>`max(position)`.as('position'))
    .where(seenBy(reader))
    .where('read_at', 'is', null)
    .executeTakeFirstOrThrow();
  if (newest.position === null) return 0;
  let query = tx
    .updateTable('notifications')
    .set({ read_at: sql<Date>`date_trunc('milliseconds', clock_timestamp())` })
    .where(seenBy(reader))
    .where('read_at', 'is', null)
    .where('position', '<=', newest.position);
  if (up_to !== null) {
    query = 'time' in up_to ? query.where('raised_at', '<=', up_to.time) : query.where('id', '<=', up_to.id);
  }
  const changed = await query.executeTakeFirst();
  return Number(changed.numUpdatedRows);
}

/** The preferences that differ from the default. */
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
  // Serialises replacements of one user's preferences: they would conflict in their rows.
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

// Notifications that wait for a mail: `mail_after` is the time from which on one may be composed, null if none is
// wanted. It equals `raised_at` unless the limit of mails held the notification back.

/** A mail to compose: all that is due to an account of one kind, or one notification alone. */
export interface Digest {
  readonly user_id: UserId;
  readonly kind: NotificationKind;
  readonly alone: NotificationId | null;
}

export interface MailedNotification {
  readonly title: string;
  readonly body: string;
  readonly count: number;
  readonly raised_at: Date;
}

const IS_ALONE = sql`kind = any(${KIND_NAMES.filter(isMailedApart)}::text[]) and mail_after = raised_at`;

/**
 * The digests that are due, the oldest first. While a mail of the kind to the account waits for its next try, further
 * notifications of the kind wait too: one mail then tells them all.
 */
export async function listDueDigests(tx: Tx, limit: number): Promise<readonly Digest[]> {
  const { rows } = await sql<Digest>`
    select recipient as user_id, kind, case when ${IS_ALONE} then id end as alone
    from notifications n
    where mail_after <= now() and not exists (
      select from mails m where m.user_id = n.recipient and m.kind = n.kind and m.attempts > 0)
    group by 1, 2, 3
    order by min(mail_after), min(id) limit ${limit}`.execute(tx);
  return rows;
}

function isIn({ user_id, kind, alone }: Digest) {
  return alone === null
    ? sql`recipient = ${user_id} and kind = ${kind} and mail_after <= now() and not (${IS_ALONE})`
    : sql`recipient = ${user_id} and id = ${alone} and mail_after <= now()`;
}

/**
 * The address of the digest's account, whose row stays locked until the transaction ends. Undefined if another
 * transaction composes for the account, or nothing of the digest is due any longer.
 */
export async function lockAddressee(tx: Tx, digest: Digest): Promise<string | undefined> {
  const { rows } = await sql<{ email: string }>`
    select email from users
    where id = ${digest.user_id} and exists (select from notifications where ${isIn(digest)})
    for no key update skip locked`.execute(tx);
  return rows[0]?.email;
}

/** Takes all notifications of the digest: returns the first `limit` of them, and how many there are. */
export async function takeDigest(
  tx: Tx,
  digest: Digest,
  limit: number,
): Promise<{ readonly told: readonly MailedNotification[]; readonly total: number }> {
  const { rows } = await sql<MailedNotification & { total: number }>`
    with taken as (
      update notifications set mail_after = null where ${isIn(digest)}
      returning id, title, body, count, raised_at
    )
    select title, body, count, raised_at, count(*) over () as total from taken order by id limit ${limit}`.execute(
    tx,
  );
  return { told: rows, total: rows[0]?.total ?? 0 };
}

/** Too many mails of the kind were sent: the digest is due again in `wait_s`, then as one mail of its kind. */
export async function holdBack(tx: Tx, digest: Digest, wait_s: number): Promise<void> {
  await sql`
    update notifications set mail_after = now() + make_interval(secs => ${wait_s}) where ${isIn(digest)}`.execute(
    tx,
  );
}

/** Mails that are not composed yet. */
export async function countDigests(tx: Tx): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(distinct (recipient, kind)) as count from notifications where mail_after is not null`.execute(
    tx,
  );
  return rows[0]?.count ?? 0;
}
