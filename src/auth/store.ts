import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { OrgId, SessionId, UserId } from '../lib/ids.ts';

export async function findUserByEmail(tx: Tx, email: string) {
  return tx.selectFrom('users').selectAll().where('email_key', '=', email.toLowerCase()).executeTakeFirst();
}

export async function findUser(tx: Tx, id: UserId) {
  return tx.selectFrom('users').selectAll().where('id', '=', id).executeTakeFirst();
}

export interface NewSession {
  readonly id: SessionId;
  readonly user_id: UserId;
  readonly token_hash: Buffer;
  readonly ip: string;
  readonly user_agent: string;
  readonly expires_at: Date;
}

export async function insertSession(tx: Tx, session: NewSession): Promise<void> {
  await tx.insertInto('sessions').values(session).execute();
}

export async function deleteSession(tx: Tx, id: SessionId): Promise<void> {
  await tx.deleteFrom('sessions').where('id', '=', id).execute();
}

/** A live session by its token's hash, with the membership it acts in: the one asked for, or the oldest. */
export async function findSessionPrincipal(tx: Tx, token_hash: Buffer, org_id: OrgId | null) {
  return tx
    .selectFrom('sessions as s')
    .innerJoin('memberships as m', 'm.user_id', 's.user_id')
    .select(['s.id', 's.user_id', 's.last_seen_at', 'm.org_id', 'm.role'])
    .where('s.token_hash', '=', token_hash)
    .where('s.expires_at', '>', sql<Date>`now()`)
    .$if(org_id !== null, (query) => query.where('m.org_id', '=', org_id as OrgId))
    .orderBy('m.created_at')
    .orderBy('m.org_id')
    .limit(1)
    .executeTakeFirst();
}

/** Whether a live session has this token's hash, whatever organisation it asks for. */
export async function sessionExists(tx: Tx, token_hash: Buffer): Promise<boolean> {
  const row = await tx
    .selectFrom('sessions')
    .select('id')
    .where('token_hash', '=', token_hash)
    .where('expires_at', '>', sql<Date>`now()`)
    .executeTakeFirst();
  return row !== undefined;
}

/** Notes use, at most once a minute, so that reading costs no write. */
export async function touchSession(tx: Tx, id: SessionId): Promise<void> {
  await tx
    .updateTable('sessions')
    .set({ last_seen_at: sql`now()` })
    .where('id', '=', id)
    .where('last_seen_at', '<', sql<Date>`now() - interval '1 minute'`)
    .execute();
}

export async function deleteExpiredSessions(tx: Tx): Promise<void> {
  await tx.deleteFrom('sessions').where('expires_at', '<', sql<Date>`now()`).execute();
}
