/** Tickets and cookies of browsers, and what a request to a private port is judged by. */
import { sql } from 'kysely';
import type { HttpPortId, SessionId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';
import { COOKIE_SECONDS, TICKET_SECONDS } from './model.ts';

/** Of one session at one port. The oldest go. */
const COOKIES_MAX = 20;

export type NewTicket = Omit<Database['http_tickets'], 'expires_at'>;

export async function insertTicket(tx: Tx, ticket: NewTicket): Promise<{ expires_at: Date }> {
  const expires_at = sql<Date>`date_trunc('milliseconds', now()) + make_interval(secs => ${TICKET_SECONDS})`;
  return tx
    .insertInto('http_tickets')
    .values({ ...ticket, expires_at })
    .returning('expires_at')
    .executeTakeFirstOrThrow();
}

/** Consumes the ticket. Undefined when the hostname has no such unexpired ticket. */
export async function takeTicket(tx: Tx, hostname: string, ticket_hash: Buffer) {
  return tx
    .deleteFrom('http_tickets')
    .where('ticket_hash', '=', ticket_hash)
    .where('hostname', '=', hostname)
    .where('expires_at', '>', sql<Date>`now()`)
    .returning(['port_id', 'hostname', 'session_id', 'org_id'])
    .executeTakeFirst();
}

export async function insertCookie(
  tx: Tx,
  cookie_hash: Buffer,
  holder: Omit<NewTicket, 'ticket_hash'>,
): Promise<void> {
  const expires_at = sql<Date>`now() + make_interval(secs => ${COOKIE_SECONDS})`;
  await tx
    .insertInto('http_cookies')
    .values({ cookie_hash, ...holder, expires_at })
    .execute();
  await dropOldCookies(tx, holder.session_id, holder.port_id);
}

async function dropOldCookies(tx: Tx, session_id: SessionId, port_id: HttpPortId): Promise<void> {
  await sql`
    delete from http_cookies where cookie_hash in (
      select cookie_hash from http_cookies where session_id = ${session_id} and port_id = ${port_id}
      order by created_at desc offset ${COOKIES_MAX})`.execute(tx);
}

export async function findCookie(tx: Tx, port_id: HttpPortId, hostname: string, cookie_hash: Buffer) {
  return tx
    .selectFrom('http_cookies')
    .select(['session_id', 'org_id'])
    .where('cookie_hash', '=', cookie_hash)
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .where('expires_at', '>', sql<Date>`now()`)
    .executeTakeFirst();
}

/** The port with what access to it depends on. Undefined: it or its instance is gone. */
export async function findServed(tx: Tx, port_id: HttpPortId) {
  return tx
    .selectFrom('http_ports as p')
    .innerJoin('instances as i', 'i.id', 'p.instance_id')
    .select(['p.label', 'p.access', 'i.org_id'])
    .where('p.id', '=', port_id)
    .where('i.deleting', '=', false)
    .executeTakeFirst();
}

/** For the sweep. */
export async function deleteExpiredAccess(tx: Tx): Promise<void> {
  await tx.deleteFrom('http_tickets').where('expires_at', '<', sql<Date>`now()`).execute();
  await tx.deleteFrom('http_cookies').where('expires_at', '<', sql<Date>`now()`).execute();
}
