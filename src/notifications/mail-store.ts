/**
 * The outbox of notification mails: a row is a mail. What is raised for one person of one kind joins the row that waits
 * for it, until that is taken for the first time; so it is the same mail at each try.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { PLANNED_EACH_TIME } from '../db/statement-names.ts';
import { present } from '../lib/assert.ts';
import type { NotificationId, UserId } from '../lib/ids.ts';
import { isMailedApart, type Kind } from './model.ts';

/** So many are told in a mail; of those after them, how many there are. */
export const MAX_TOLD = 20;

/** What is to be mailed: a notification that was raised. */
export interface Mailed {
  readonly id: NotificationId;
  readonly user_id: UserId;
  readonly kind: Kind;
}

/** Puts them into the outbox, at the commit. */
export async function queueMails(tx: Tx, mailed: readonly Mailed[]): Promise<void> {
  if (mailed.length === 0) return;
  const of_mail = Map.groupBy(mailed, (each) => `${each.user_id} ${batchOf(each)}`);
  const mails = [...of_mail.values()].map((all) => {
    const first = present(all[0], 'the first of a group');
    const told = all.slice(0, MAX_TOLD).map(({ id }) => id);
    const more = all.length - told.length;
    return { user_id: first.user_id, batch: batchOf(first), told: told.join(' '), more };
  });
  await sql`
    insert into notification_mails as m (user_id, batch, notifications, more)
    select w.user_id, w.batch, string_to_array(w.told, ' '), w.more
    from jsonb_to_recordset(${JSON.stringify(mails)}::jsonb) as w(user_id text, batch text, told text, more integer)
    on conflict (user_id, batch) where attempts = 0 do update
    set notifications = (m.notifications || excluded.notifications)[:${sql.lit(MAX_TOLD)}],
        more = m.more + excluded.more
          + greatest(0, cardinality(m.notifications || excluded.notifications) - ${sql.lit(MAX_TOLD)})
    -- What repeats is in it.
    where not m.notifications @> excluded.notifications`.execute(tx);
}

const batchOf = ({ id, kind }: Mailed): string => (isMailedApart(kind) ? id : kind);

export async function countNotificationMails(tx: Tx): Promise<number> {
  const { count } = await tx
    .selectFrom('notification_mails')
    .select((is) => is.fn.countAll<number>().as('count'))
    .executeTakeFirstOrThrow();
  return Number(count);
}

export interface DueMail {
  readonly user_id: UserId;
  readonly id: number;
  readonly attempts: number;
  /** Names this taking: who comes after it moved on has nothing to say. */
  readonly due_at: string;
  readonly email: string;
  /** What of one person goes into one mail. */
  readonly batch: string;
  readonly kind: Kind;
  /** The first. */
  readonly notifications: readonly [MailedNotification, ...MailedNotification[]];
  /** How many come after those. */
  readonly more: number;
}

export interface MailedNotification {
  readonly id: NotificationId;
  readonly title: string;
  readonly body: string;
  readonly count: number;
  readonly raised_at: Date;
}

type Row = Omit<DueMail, 'notifications'> &
  Omit<MailedNotification, 'id'> & { readonly notification_id: NotificationId };

/**
 * Takes up to `limit` of the mails that wait for longest, for `lease_s`: nobody else has them until then. Does not wait
 * for the disk: a taking that dies with the database is one by a process that died. A transaction of its own.
 */
export async function takeDueMails(tx: Tx, limit: number, lease_s: number): Promise<readonly DueMail[]> {
  const { rows } = await sql<Row>`${sql.raw(PLANNED_EACH_TIME)}
    with unsynced as materialized (
      select set_config('synchronous_commit', 'off', true)
    ), due as (
      select user_id, id from notification_mails, unsynced where due_at <= now()
      order by due_at limit ${limit} for update of notification_mails skip locked
    ), taken as (
      update notification_mails m
      set attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => ${lease_s})
      from due where m.user_id = due.user_id and m.id = due.id
      returning m.*
    )
    select t.user_id, t.id, t.attempts, t.due_at::text, t.batch, t.more, u.email,
           n.kind, n.id as notification_id, n.title, n.body, n.count, n.raised_at
    from taken t
    join users u on u.id = t.user_id
    cross join lateral unnest(t.notifications) as told (id)
    -- One by one: joined by the array, all that the recipient has would be gone through.
    cross join lateral (
      select * from notifications where recipient = t.user_id and notifications.id = told.id offset 0
    ) n
    order by n.id`.execute(tx);
  return [...Map.groupBy(rows, ({ user_id, id }) => `${user_id} ${id}`).values()].map(mailOf);
}

function mailOf(rows: readonly Row[]): DueMail {
  const [row, ...others] = rows;
  const { user_id, id, attempts, due_at, email, batch, kind, more, ...first } = present(row, 'a row');
  const notifications = [notificationOf(first), ...others.map(notificationOf)] as const;
  return { user_id, id, attempts, due_at, email, batch, kind, more, notifications };
}

function notificationOf(row: Omit<Row, keyof DueMail>): MailedNotification {
  const { notification_id, title, body, count, raised_at } = row;
  return { id: notification_id, title, body, count, raised_at };
}

/** They are out, or given up; who took one later has another `due_at`, and keeps it. */
export async function endMails(tx: Tx, mails: readonly DueMail[]): Promise<void> {
  await sql`
    delete from notification_mails m
    using unnest(
      ${mails.map(({ user_id }) => user_id)}::text[], ${mails.map(({ id }) => id)}::bigint[],
      ${mails.map(({ due_at }) => due_at)}::timestamptz[]
    ) as ended (user_id, id, due_at)
    where m.user_id = ended.user_id and m.id = ended.id and m.due_at = ended.due_at`.execute(tx);
}

export async function postponeMail(tx: Tx, { user_id, id, due_at }: DueMail, wait_ms: number): Promise<void> {
  await sql`
    update notification_mails set due_at = now() + make_interval(secs => ${wait_ms / 1000})
    where user_id = ${user_id} and id = ${id} and due_at = ${due_at}::timestamptz`.execute(tx);
}

/** There were too many of the kind. It was not tried, and once it may go, it goes together with all others of the kind. */
export async function holdBackMail(
  tx: Tx,
  { user_id, id, due_at, kind }: DueMail,
  wait_s: number,
): Promise<void> {
  await sql`
    update notification_mails
    -- One that was taken is never again one that waits to be joined, which has no attempts.
    set batch = ${kind}, attempts = greatest(1, attempts - 1), due_at = now() + make_interval(secs => ${wait_s})
    where user_id = ${user_id} and id = ${id} and due_at = ${due_at}::timestamptz`.execute(tx);
}

/** For the sweep: of notifications that are no more. */
export async function deleteEmptyMails(tx: Tx): Promise<void> {
  await sql`
    delete from notification_mails m where not exists (
      select from notifications n where n.recipient = m.user_id and n.id = any(m.notifications))`.execute(tx);
}
