/**
 * Notifications that wait for a mail: `mail_after` is the time from which on one may be composed, null if none is
 * wanted. It equals `raised_at` unless the limit of mails held the notification back.
 */
import { sql } from 'kysely';
import type { NotificationId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { PLANNED_EACH_TIME } from '../db/statement-names.ts';
import { isMailedApart, KIND_NAMES, type Kind } from './model.ts';

/** A mail to compose: all that is due to an account of one kind, or one notification alone. */
export interface Digest {
  readonly user_id: UserId;
  readonly kind: Kind;
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
  const { rows } = await sql<Digest>`${sql.raw(PLANNED_EACH_TIME)}
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
