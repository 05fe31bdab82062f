/** The outbox of notification mails. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { NotificationId } from '../lib/ids.ts';
import type { Kind } from './model.ts';

export interface DueMail {
  readonly notification_id: NotificationId;
  readonly attempts: number;
  /** Names this taking: who comes after it moved on has nothing to say. */
  readonly due_at: string;
  readonly email: string;
  readonly kind: Kind;
  readonly title: string;
  readonly body: string;
  readonly count: number;
  readonly raised_at: Date;
}

/**
 * Takes up to `limit` of the mails that wait for longest, for `lease_s`: nobody else has them until then. Does not wait
 * for the disk: a taking that dies with the database is one by a process that died. A transaction of its own.
 */
export async function takeDueMails(tx: Tx, limit: number, lease_s: number): Promise<readonly DueMail[]> {
  const { rows } = await sql<DueMail>`
    with unsynced as materialized (
      select set_config('synchronous_commit', 'off', true)
    ), due as (
      select notification_id from notification_mails, unsynced where due_at <= now()
      order by due_at limit ${limit} for update of notification_mails skip locked
    ), taken as (
      update notification_mails m
      set attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => ${lease_s})
      from due where m.notification_id = due.notification_id
      returning m.notification_id, m.attempts, m.due_at
    )
    select t.notification_id, t.attempts, t.due_at::text, u.email, n.kind, n.title, n.body, n.count, n.raised_at
    from taken t join notifications n on n.id = t.notification_id join users u on u.id = n.user_id`.execute(
    tx,
  );
  return rows;
}

/** They are out, or given up; a raise meanwhile has another `due_at`, and stays. */
export async function endMails(tx: Tx, mails: readonly DueMail[]): Promise<void> {
  await sql`
    delete from notification_mails m
    using unnest(${mails.map((mail) => mail.notification_id)}::text[], ${mails.map((mail) => mail.due_at)}::timestamptz[])
      as ended (notification_id, due_at)
    where m.notification_id = ended.notification_id and m.due_at = ended.due_at`.execute(tx);
}

export async function postponeMail(
  tx: Tx,
  { notification_id, due_at }: DueMail,
  wait_ms: number,
): Promise<void> {
  await sql`
    update notification_mails set due_at = now() + make_interval(secs => ${wait_ms / 1000})
    where notification_id = ${notification_id} and due_at = ${due_at}::timestamptz`.execute(tx);
}
