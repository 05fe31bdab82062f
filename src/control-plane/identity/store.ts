/** SQL of users, of their sessions with bearer tokens, and of sudo grants. */
import { sql } from 'kysely';
import { AppError } from '../../shared/errors.ts';
import type { OrgId, SessionId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { deleteLongReplaced } from './login-store.ts';

export async function findUserByEmail(tx: Tx, email: string) {
  return tx.selectFrom('users').selectAll().where('email_key', '=', email.toLowerCase()).executeTakeFirst();
}

/** A user, whether a second factor is confirmed, and the providers that the account is linked to. */
export async function findUser(tx: Tx, id: UserId) {
  return tx
    .selectFrom('users')
    .selectAll()
    .select((eb) =>
      eb
        .exists(
          eb
            .selectFrom('mfa_factors')
            .select('mfa_factors.id')
            .whereRef('mfa_factors.user_id', '=', 'users.id')
            .where('confirmed_at', 'is not', null),
        )
        .as('mfa_enabled'),
    )
    .select(
      sql<string[]>`array(select issuer from identities where identities.user_id = users.id)`.as('issuers'),
    )
    .where('id', '=', id)
    .executeTakeFirst();
}

/** Locks the user against other changes until the transaction ends. */
export async function lockUser(tx: Tx, id: UserId): Promise<void> {
  await tx.selectFrom('users').select('id').where('id', '=', id).forNoKeyUpdate().execute();
}

/** The same, and against new references: no membership is added. */
export async function lockUserForDeletion(tx: Tx, id: UserId): Promise<void> {
  await tx.selectFrom('users').select('id').where('id', '=', id).forUpdate().execute();
}

export async function hasUsers(tx: Tx): Promise<boolean> {
  return (await tx.selectFrom('users').select('id').limit(1).executeTakeFirst()) !== undefined;
}

/** Prevents new accounts until the transaction ends. */
export async function lockUsers(tx: Tx): Promise<void> {
  await sql`lock table users in share row exclusive mode`.execute(tx);
}

export async function updateUser(
  tx: Tx,
  id: UserId,
  change: { name?: string; password_hash?: string | null; email_confirmed?: boolean },
): Promise<void> {
  await tx.updateTable('users').set(change).where('id', '=', id).execute();
}

/** Sets a confirmed address. @throws unique violation `users_email_key_key` */
export async function updateEmail(tx: Tx, id: UserId, email: string): Promise<void> {
  const change = { email, email_key: email.toLowerCase(), email_confirmed: true };
  await tx.updateTable('users').set(change).where('id', '=', id).execute();
}

/** Deletes the user with sessions, factors, keys and memberships (foreign keys), and notifications. */
export async function deleteUser(tx: Tx, id: UserId): Promise<void> {
  await tx.deleteFrom('users').where('id', '=', id).execute();
  // After the user: raising notifications locks the user.
  await tx.deleteFrom('notifications').where('recipient', '=', id).execute();
}

export interface NewSession {
  readonly id: SessionId;
  readonly user_id: UserId;
  readonly refresh_family: Buffer;
  readonly refresh_hash: Buffer;
  readonly ip: string;
  readonly user_agent: string;
  readonly ends_at: Date;
}

export async function insertSession(tx: Tx, session: NewSession): Promise<void> {
  await tx.insertInto('sessions').values(session).execute();
}

export async function insertSessionToken(
  tx: Tx,
  token_hash: Buffer,
  session_id: SessionId,
  expires_at: Date,
): Promise<void> {
  await tx.insertInto('session_tokens').values({ token_hash, session_id, expires_at }).execute();
}

/** Keeps the session from ending until the transaction ends. @throws AppError UNAUTHENTICATED if it has ended */
export async function holdSession(tx: Tx, id: SessionId): Promise<void> {
  const row = await tx
    .selectFrom('sessions')
    .select('id')
    .where('id', '=', id)
    .where('ends_at', '>', sql<Date>`now()`)
    .forKeyShare()
    .executeTakeFirst();
  if (!row) throw new AppError('UNAUTHENTICATED', { message: 'The session has ended. Log in again.' });
}

/** Ends a session with its tokens and sudo grants. */
export async function deleteSession(tx: Tx, user_id: UserId, id: SessionId): Promise<boolean> {
  const gone = await tx
    .deleteFrom('sessions')
    .where('id', '=', id)
    .where('user_id', '=', user_id)
    .executeTakeFirst();
  return gone.numDeletedRows > 0n;
}

/** Ends all sessions of a user but one, with their tokens and sudo grants. @returns how many were live */
export async function deleteOtherSessions(tx: Tx, user_id: UserId, keep: SessionId | null): Promise<number> {
  const gone = await tx
    .deleteFrom('sessions')
    .where('user_id', '=', user_id)
    .$if(keep !== null, (query) => query.where('id', '!=', keep as SessionId))
    .returning(sql<boolean>`ends_at > now()`.as('live'))
    .execute();
  return gone.filter(({ live }) => live).length;
}

export async function deleteSudoGrants(tx: Tx, user_id: UserId): Promise<void> {
  await tx.deleteFrom('sudo_grants').where('user_id', '=', user_id).execute();
}

/** The live sessions. */
export async function countSessions(tx: Tx, user_id: UserId): Promise<number> {
  const row = await tx
    .selectFrom('sessions')
    .select(sql<number>`count(*)`.as('count'))
    .where('user_id', '=', user_id)
    .where('ends_at', '>', sql<Date>`now()`)
    .executeTakeFirstOrThrow();
  return row.count;
}

export async function listSessions(tx: Tx, user_id: UserId, before: string | null, limit: number) {
  return tx
    .selectFrom('sessions')
    .select(['id', 'ip', 'user_agent', 'created_at', 'last_seen_at', 'ends_at'])
    .where('user_id', '=', user_id)
    .where('ends_at', '>', sql<Date>`now()`)
    .$if(before !== null, (query) => query.where('id', '<', before as SessionId))
    .orderBy('id', 'desc')
    .limit(limit)
    .execute();
}

/** A live session by its token's hash, with the requested membership, or the oldest. */
export async function findSessionPrincipal(tx: Tx, token_hash: Buffer, org_id: OrgId | null) {
  return tx
    .selectFrom('session_tokens as t')
    .innerJoin('sessions as s', 's.id', 't.session_id')
    .innerJoin('memberships as m', 'm.user_id', 's.user_id')
    .innerJoin('users as u', 'u.id', 's.user_id')
    .select(['s.id', 's.user_id', 's.last_seen_at', 'm.org_id', 'm.role', 'u.email_confirmed'])
    .where('t.token_hash', '=', token_hash)
    .where('t.expires_at', '>', sql<Date>`now()`)
    .where('s.ends_at', '>', sql<Date>`now()`)
    .$if(org_id !== null, (query) => query.where('m.org_id', '=', org_id as OrgId))
    .orderBy('m.created_at')
    .orderBy('m.org_id')
    .limit(1)
    .executeTakeFirst();
}

/** A live session by its id, with its membership of the organisation. */
export async function findLiveSession(tx: Tx, id: SessionId, org_id: OrgId) {
  return tx
    .selectFrom('sessions as s')
    .innerJoin('memberships as m', 'm.user_id', 's.user_id')
    .innerJoin('users as u', 'u.id', 's.user_id')
    .select(['s.id', 's.user_id', 'm.org_id', 'm.role', 'u.email_confirmed'])
    .where('s.id', '=', id)
    .where('s.ends_at', '>', sql<Date>`now()`)
    .where('m.org_id', '=', org_id)
    .executeTakeFirst();
}

/** Whether a live session has this token's hash. */
export async function sessionExists(tx: Tx, token_hash: Buffer): Promise<boolean> {
  const row = await tx
    .selectFrom('session_tokens as t')
    .innerJoin('sessions as s', 's.id', 't.session_id')
    .select('s.id')
    .where('t.token_hash', '=', token_hash)
    .where('t.expires_at', '>', sql<Date>`now()`)
    .where('s.ends_at', '>', sql<Date>`now()`)
    .executeTakeFirst();
  return row !== undefined;
}

/** Records that the session was used, at most once a minute. */
export async function touchSession(tx: Tx, id: SessionId): Promise<void> {
  await tx
    .updateTable('sessions')
    .set({ last_seen_at: sql`now()` })
    .where('id', '=', id)
    .where('last_seen_at', '<', sql<Date>`now() - interval '1 minute'`)
    .execute();
}

/** Returns when it ends, by the database's clock. */
export async function insertSudoGrant(
  tx: Tx,
  grant: { readonly token_hash: Buffer; readonly session_id: SessionId; readonly user_id: UserId },
  lifetime_s: number,
): Promise<Date> {
  const expires_at = sql<Date>`date_trunc('milliseconds', clock_timestamp()) + make_interval(secs => ${lifetime_s})`;
  const row = await tx
    .insertInto('sudo_grants')
    .values({ ...grant, expires_at })
    .returning('expires_at')
    .executeTakeFirstOrThrow();
  return row.expires_at;
}

/** Whether it is a live grant of this session. */
export async function hasSudoGrant(tx: Tx, session_id: SessionId, token_hash: Buffer): Promise<boolean> {
  const row = await tx
    .selectFrom('sudo_grants')
    .select('expires_at')
    .where('token_hash', '=', token_hash)
    .where('session_id', '=', session_id)
    .where('expires_at', '>', sql<Date>`clock_timestamp()`)
    .executeTakeFirst();
  return row !== undefined;
}

/** Removes expired rows. */
export async function deleteExpired(tx: Tx): Promise<void> {
  const now = sql<Date>`now()`;
  await tx.deleteFrom('session_tokens').where('expires_at', '<', now).execute();
  await tx.deleteFrom('sessions').where('ends_at', '<', now).execute();
  await tx.deleteFrom('sudo_grants').where('expires_at', '<', now).execute();
  await deleteLongReplaced(tx);
  await tx.deleteFrom('mail_tokens').where('expires_at', '<', now).execute();
  await tx.deleteFrom('webauthn_challenges').where('expires_at', '<', now).execute();
  await tx
    .deleteFrom('lockouts')
    .where('updated_at', '<', sql<Date>`now() - interval '7 days'`)
    .where((eb) => eb.or([eb('locked_until', 'is', null), eb('locked_until', '<', now)]))
    .execute();
}

/** The user's oldest membership; audit entries about the account go there. */
export async function firstOrganisation(tx: Tx, user_id: UserId): Promise<OrgId | null> {
  const row = await tx
    .selectFrom('memberships')
    .select('org_id')
    .where('user_id', '=', user_id)
    .orderBy('created_at')
    .limit(1)
    .executeTakeFirst();
  return row?.org_id ?? null;
}
