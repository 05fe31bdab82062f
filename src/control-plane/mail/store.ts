/** Rows of mails that wait to be sent, and how many an address has got. */
import { sql } from 'kysely';
import type { MailId, OrgId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

export interface NewMail {
  readonly id: MailId;
  readonly kind: string;
  readonly user_id: UserId | null;
  readonly sealed: Buffer;
}

export async function insertMail(tx: Tx, mail: NewMail, good_for_s: number): Promise<void> {
  await tx
    .insertInto('mails')
    .values({ ...mail, good_until: sql<Date>`now() + make_interval(secs => ${good_for_s})` })
    .execute();
}

export interface WaitingMail {
  readonly id: MailId;
  readonly sealed: Buffer;
  /** Tries, this one included. */
  readonly attempts: number;
  /** Identifies this lease: a process whose lease is over changes nothing. */
  readonly due_at: string;
  /** Until the mail expires; negative: it has. */
  readonly good_for_ms: number;
}

/** Leases up to `limit` due mails for `lease_s`, those first that have been due for longest. */
export async function takeMails(tx: Tx, limit: number, lease_s: number): Promise<readonly WaitingMail[]> {
  const { rows } = await sql<WaitingMail>`
    with due as (
      select id from mails where due_at <= now() order by due_at limit ${limit} for update skip locked
    )
    update mails m set attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => ${lease_s})
    from due where m.id = due.id
    returning m.id, m.sealed, m.attempts, m.due_at::text,
              (extract(epoch from m.good_until - now()) * 1000)::float8 as good_for_ms`.execute(tx);
  return rows;
}

/** Whether the token of an invitation, a password reset or an address confirmation is still valid. */
export async function isTokenGood(tx: Tx, token_hash: Buffer): Promise<boolean> {
  const { rows } = await sql`
    select from invitations where token_hash = ${token_hash} and expires_at > now()
    union all
    select from mail_tokens where token_hash = ${token_hash} and expires_at > now()`.execute(tx);
  return rows.length > 0;
}

export async function countMails(tx: Tx): Promise<number> {
  const { count } = await tx
    .selectFrom('mails')
    .select((is) => is.fn.countAll<number>().as('count'))
    .executeTakeFirstOrThrow();
  return Number(count);
}

export interface MailCounts {
  readonly waiting: number;
  /** Of these, tried without success; each is tried again until it expires. */
  readonly failing: number;
}

export async function countMailsByState(tx: Tx): Promise<MailCounts> {
  const { rows } = await sql<MailCounts>`
    select count(*) as waiting, count(*) filter (where attempts > 0) as failing from mails`.execute(tx);
  return rows[0] ?? { waiting: 0, failing: 0 };
}

/** The mail was sent, or is given up. */
export async function deleteMail(tx: Tx, { id, due_at }: WaitingMail): Promise<void> {
  await sql`delete from mails where id = ${id} and due_at = ${due_at}::timestamptz`.execute(tx);
}

export async function postponeMail(tx: Tx, { id, due_at }: WaitingMail, wait_ms: number): Promise<void> {
  await sql`
    update mails set due_at = now() + make_interval(secs => ${wait_ms / 1000})
    where id = ${id} and due_at = ${due_at}::timestamptz`.execute(tx);
}

/**
 * Limits the mails of a kind to an address: at most five in a quarter of an hour, counted over all senders. And those that an
 * organisation's members send to whomever they name: all tenants share one mail server. The counts are in the database, so all
 * processes share them.
 */

export const MAX_MAILS = 5;
/** Of an organisation, to all addresses together. */
export const MAX_SENT = 200;
export const WINDOW_S = 900;

/** When the mail was counted, or in how many seconds the next one is allowed. */
export type Counted = { readonly counted_at: string } | { readonly free_in_s: number };

const window = sql`make_interval(secs => ${sql.lit(WINDOW_S)})`;
const recent = sql`select t from unnest(c.sent_at) as t where t > now() - ${window} order by t`;

/** Counts one mail of an organisation. */
export function countSent(tx: Tx, from: OrgId): Promise<Counted> {
  return countMail(tx, from, 'sent', MAX_SENT);
}

/** Counts one mail. Other transactions that count the same address and kind wait until this one ends. */
export async function countMail(tx: Tx, email: string, kind: string, most = MAX_MAILS): Promise<Counted> {
  const address = email.toLowerCase();
  const { rows } = await sql<{ counted_at: string }>`
    insert into mail_counts as c (address, kind, sent_at) values (${address}, ${kind}, array[now()])
    on conflict (address, kind) do update set sent_at = array(${recent}) || now()
    where cardinality(array(${recent})) < ${sql.lit(most)}
    returning now()::text as counted_at`.execute(tx);
  return rows[0] ?? { free_in_s: await freeIn(tx, address, kind) };
}

/** Seconds until the oldest counted mail leaves the window. Not by `now()`: the transaction may have begun before that mail. */
async function freeIn(tx: Tx, address: string, kind: string): Promise<number> {
  const { rows } = await sql<{ free_in_s: number | null }>`
    select extract(epoch from (${recent} limit 1) + ${window} - clock_timestamp())::float8 as free_in_s
    from mail_counts c where address = ${address} and kind = ${kind}`.execute(tx);
  return Math.max(1, Math.ceil(rows[0]?.free_in_s ?? 1));
}

/** Counts a mail that left late from now on, instead of from `counted_at`. */
export async function recountMail(tx: Tx, email: string, kind: string, counted_at: string): Promise<void> {
  await sql`
    insert into mail_counts as c (address, kind, sent_at) values (${email.toLowerCase()}, ${kind}, array[now()])
    on conflict (address, kind) do update
    set sent_at = array_remove(c.sent_at, ${counted_at}::timestamptz) || now()`.execute(tx);
}

/** For the sweep. */
export async function deleteOldMailCounts(tx: Tx): Promise<void> {
  await sql`
    delete from mail_counts c where not exists (${recent})`.execute(tx);
}
