import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { MailId } from '../lib/ids.ts';

export async function insertMail(tx: Tx, id: MailId, sealed: Buffer, good_for_s: number): Promise<void> {
  await sql`
    insert into mails (id, sealed, good_until) values (${id}, ${sealed}, now() + make_interval(secs => ${good_for_s}))`.execute(
    tx,
  );
}

export interface WaitingMail {
  readonly id: MailId;
  readonly sealed: Buffer;
  /** This one among them. */
  readonly attempts: number;
  /** Names this taking: who comes after it moved on has nothing to say. */
  readonly due_at: string;
  /** Then nobody needs it any more; below zero where that has been. */
  readonly good_for_ms: number;
}

/** Takes up to `limit` of the mails that are due, those that wait for longest, for `lease_s`: nobody else has them until then. */
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

/** Whether it could still be used: of an invitation, a reset, or a new address. */
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

/** It is out, or given up. */
export async function endMail(tx: Tx, { id, due_at }: WaitingMail): Promise<void> {
  await sql`delete from mails where id = ${id} and due_at = ${due_at}::timestamptz`.execute(tx);
}

export async function postponeMail(tx: Tx, { id, due_at }: WaitingMail, wait_ms: number): Promise<void> {
  await sql`
    update mails set due_at = now() + make_interval(secs => ${wait_ms / 1000})
    where id = ${id} and due_at = ${due_at}::timestamptz`.execute(tx);
}
