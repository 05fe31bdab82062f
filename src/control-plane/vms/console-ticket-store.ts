/**
 * SQL of `console_tickets`: inserts, consumes and expires tickets. A ticket opens one stream, to the console of an
 * instance or to one of its execs, without the caller's credential. It is valid once, within 60 s. The row has the
 * ticket's hash and the session or API key that it stands for. console-routes.ts issues and checks tickets.
 */
import { sql } from 'kysely';
import type { ExecId, InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';

export const TICKET_SECONDS = 60;

type Ticket = Database['console_tickets'];
export type NewTicket = Pick<
  Ticket,
  'ticket_hash' | 'instance_id' | 'org_id' | 'credential_kind' | 'credential_id' | 'secret_hash' | 'exec_id'
>;

export async function insertTicket(tx: Tx, ticket: NewTicket): Promise<{ expires_at: Date }> {
  const expires_at = sql<Date>`date_trunc('milliseconds', now()) + make_interval(secs => ${TICKET_SECONDS})`;
  return tx
    .insertInto('console_tickets')
    .values({ ...ticket, expires_at })
    .returning('expires_at')
    .executeTakeFirstOrThrow();
}

/** Consumes the ticket. Undefined when the console, or the exec, has no such unexpired ticket. */
export async function takeTicket(
  tx: Tx,
  instance_id: InstanceId,
  exec_id: ExecId | null,
  ticket_hash: Buffer,
) {
  return tx
    .deleteFrom('console_tickets')
    .where('ticket_hash', '=', ticket_hash)
    .where('instance_id', '=', instance_id)
    .where('exec_id', exec_id === null ? 'is' : '=', exec_id)
    .where('expires_at', '>', sql<Date>`now()`)
    .returningAll()
    .executeTakeFirst();
}

/** For the sweep. */
export async function deleteExpiredTickets(tx: Tx): Promise<void> {
  await tx.deleteFrom('console_tickets').where('expires_at', '<', sql<Date>`now()`).execute();
}
