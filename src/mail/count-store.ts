/**
 * How many mails of a kind an address gets: at most five in a quarter of an hour, whoever causes them. Counted in the
 * database, so that all processes count together.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';

export const MAX_MAILS = 5;
export const WINDOW_S = 900;

/** One more, or in how many seconds there may be one. */
export type Counted = { readonly counted_at: string } | { readonly free_in_s: number };

const window = sql`make_interval(secs => ${sql.lit(WINDOW_S)})`;
const recent = sql`select t from unnest(c.sent_at) as t where t > now() - ${window} order by t`;

/** Until the transaction's end others who count the same address and kind wait. */
export async function countMail(tx: Tx, email: string, kind: string): Promise<Counted> {
  const address = email.toLowerCase();
  const { rows } = await sql<{ counted_at: string }>`
    insert into mail_counts as c (address, kind, sent_at) values (${address}, ${kind}, array[now()])
    on conflict (address, kind) do update set sent_at = array(${recent}) || now()
    where cardinality(array(${recent})) < ${sql.lit(MAX_MAILS)}
    returning now()::text as counted_at`.execute(tx);
  return rows[0] ?? { free_in_s: await freeIn(tx, address, kind) };
}

/** When the oldest of those that count is past the window. */
async function freeIn(tx: Tx, address: string, kind: string): Promise<number> {
  const { rows } = await sql<{ free_in_s: number | null }>`
    select extract(epoch from (${recent} limit 1) + ${window} - now())::float8 as free_in_s
    from mail_counts c where address = ${address} and kind = ${kind}`.execute(tx);
  return Math.max(1, Math.ceil(rows[0]?.free_in_s ?? 1));
}

/** It did not go out after all. */
export async function uncountMail(tx: Tx, email: string, kind: string, counted_at: string): Promise<void> {
  await sql`
    update mail_counts set sent_at = array_remove(sent_at, ${counted_at}::timestamptz)
    where address = ${email.toLowerCase()} and kind = ${kind}`.execute(tx);
}

/** For the sweep. */
export async function deleteOldMailCounts(tx: Tx): Promise<void> {
  await sql`
    delete from mail_counts c where not exists (${recent})`.execute(tx);
}
