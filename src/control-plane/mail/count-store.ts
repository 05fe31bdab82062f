/**
 * Limits the mails of a kind to an address: at most five in a quarter of an hour, counted over all senders. And those that an
 * organisation's members send to whomever they name: all tenants share one mail server. The counts are in the database, so all
 * processes share them.
 */
import { sql } from 'kysely';
import type { OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

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
