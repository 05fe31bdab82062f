/**
 * SQL of identities: which account belongs to a subject of an OpenID provider, and the provider's refresh token for it,
 * encrypted. A process claims an identity before it asks the provider about the user, so that no other process asks at
 * the same time.
 */
import { sql } from 'kysely';
import type { UserId } from '../../../shared/ids.ts';
import { Sealer } from '../../../shared/seal.ts';
import type { Tx } from '../../db/pool.ts';

/** The provider is asked again after this time, so that a removed group takes effect within the hour. */
const CHECK_AFTER = sql`interval '45 minutes'`;
/** Longer than the provider has to answer. */
const CLAIM = sql`interval '2 minutes'`;

export function identitySealer(root_key: Uint8Array): Sealer {
  return new Sealer(root_key, 'berth identities v1');
}

export interface IdentityKey {
  readonly issuer: string;
  readonly subject: string;
}

export interface Identity extends IdentityKey {
  readonly user_id: UserId;
  readonly refresh_token: Buffer | null;
}

const SHOWN = ['issuer', 'subject', 'user_id', 'refresh_token'] as const;
const boundTo = ({ issuer, subject }: IdentityKey) => `${issuer} ${subject}`;

export function openRefreshToken(sealer: Sealer, identity: Identity): string | null {
  return identity.refresh_token && sealer.open(identity.refresh_token, boundTo(identity));
}

export async function findIdentity(tx: Tx, { issuer, subject }: IdentityKey) {
  return tx
    .selectFrom('identities')
    .select(SHOWN)
    .where('issuer', '=', issuer)
    .where('subject', '=', subject)
    .executeTakeFirst();
}

export async function findIdentityOf(tx: Tx, issuer: string, user_id: UserId) {
  return tx
    .selectFrom('identities')
    .select(SHOWN)
    .where('issuer', '=', issuer)
    .where('user_id', '=', user_id)
    .executeTakeFirst();
}

export async function insertIdentity(tx: Tx, key: IdentityKey, user_id: UserId): Promise<void> {
  await tx
    .insertInto('identities')
    .values({ issuer: key.issuer, subject: key.subject, user_id, refresh_token: null, claimed_until: null })
    .execute();
}

/** The provider has answered for the person. A login without a refresh token keeps the one before: Google gives it once. */
export async function noteChecked(
  tx: Tx,
  sealer: Sealer,
  key: IdentityKey,
  refresh_token: string | null,
): Promise<void> {
  const sealed = refresh_token === null ? {} : { refresh_token: sealer.seal(refresh_token, boundTo(key)) };
  await tx
    .updateTable('identities')
    .set({ checked_at: sql`now()`, claimed_until: null, ...sealed })
    .where('issuer', '=', key.issuer)
    .where('subject', '=', key.subject)
    .execute();
}

/** The same for a refresh: false if a login has replaced the token meanwhile. */
export async function replaceProviderToken(
  tx: Tx,
  { issuer, subject, refresh_token }: Identity,
  next: Buffer | null,
): Promise<boolean> {
  const done = await tx
    .updateTable('identities')
    .set({ refresh_token: next, checked_at: sql`now()`, claimed_until: null })
    .where('issuer', '=', issuer)
    .where('subject', '=', subject)
    .where(sql<boolean>`refresh_token is not distinct from ${refresh_token}::bytea`)
    .executeTakeFirst();
  return done.numUpdatedRows > 0n;
}

export function sealRefreshToken(sealer: Sealer, key: IdentityKey, token: string): Buffer {
  return sealer.seal(token, boundTo(key));
}

/** Claims the identity that was not checked for longest, if it is time; undefined: none. */
export async function claimDueIdentity(tx: Tx, issuer: string): Promise<Identity | undefined> {
  return claim(
    tx,
    sql`issuer = ${issuer} and refresh_token is not null and checked_at < now() - ${CHECK_AFTER}`,
  );
}

/** Claims a user's identity; undefined: there is none, or another process asks the provider just now. */
export async function claimIdentityOf(
  tx: Tx,
  issuer: string,
  user_id: UserId,
): Promise<Identity | undefined> {
  return claim(tx, sql`issuer = ${issuer} and user_id = ${user_id}`);
}

async function claim(tx: Tx, which: ReturnType<typeof sql>): Promise<Identity | undefined> {
  const { rows } = await sql<Identity>`
    update identities set claimed_until = now() + ${CLAIM}
    where (issuer, subject) = (
      select issuer, subject from identities
      where ${which} and (claimed_until is null or claimed_until < now())
      order by checked_at limit 1 for update skip locked
    )
    returning issuer, subject, user_id, refresh_token`.execute(tx);
  return rows[0];
}

/** The users with an identity at the provider, with their addresses. */
export async function listIdentified(tx: Tx, issuer: string) {
  return tx
    .selectFrom('identities as i')
    .innerJoin('users as u', 'u.id', 'i.user_id')
    .select(['u.id', 'u.email'])
    .where('i.issuer', '=', issuer)
    .orderBy('u.email_key')
    .execute();
}

/** Of every provider. @returns how many there were */
export async function deleteIdentities(tx: Tx, user_id: UserId): Promise<number> {
  const gone = await tx.deleteFrom('identities').where('user_id', '=', user_id).executeTakeFirst();
  return Number(gone.numDeletedRows);
}
