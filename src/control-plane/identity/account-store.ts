/**
 * SQL of accounts: creates them, counts their credentials, issues and consumes the single-use tokens of mails, and
 * looks up the names of actors for events and the audit log. Users, sessions and sudo grants are in store.ts.
 */
import { sql } from 'kysely';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { newId, type OrgId, type UserId } from '../../shared/ids.ts';
import type { OwnQuotas } from '../../shared/quotas.ts';
import { type Tx, violates } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';
import { hashToken, MAIL_PREFIX, newToken, tokenPrefix } from './tokens.ts';

/** Maximum length of an organisation's name, in characters. */
const NAME_LENGTH = 100;

export interface NewAccount {
  readonly email: string;
  readonly name: string;
  /** Null: the account has no password. */
  readonly password_hash: string | null;
  readonly email_confirmed: boolean;
}

/** How the first administrator's organisation differs from those that sign-ups make. */
export interface OwnOrganisation {
  readonly quotas: OwnQuotas;
  /** Its owners and admins operate the installation. */
  readonly operator: boolean;
}

/** Creates an account and its own organisation. @throws AppError CONFLICT when the address is taken */
export async function insertAccount(
  tx: Tx,
  account: NewAccount,
  { quotas, operator }: OwnOrganisation = { quotas: {}, operator: false },
): Promise<UserId> {
  const user_id = await insertUser(tx, account);
  const org_id = newId('org');
  const name = [...(account.name || account.email)].slice(0, NAME_LENGTH).join('');
  const org = { id: org_id, name, billing_email: account.email, created_by: user_id };
  await tx
    .insertInto('organisations')
    .values({ ...org, quotas: JSON.stringify(quotas), operator })
    .execute();
  // Earlier than other memberships of the same transaction, so that this organisation counts as the first.
  const created_at = sql<Date>`now() - interval '1 millisecond'`;
  await tx.insertInto('memberships').values({ org_id, user_id, role: 'owner', created_at }).execute();
  return user_id;
}

/** Creates an account, which still needs an organisation. @throws AppError CONFLICT when the address is taken */
export async function insertUser(tx: Tx, account: NewAccount): Promise<UserId> {
  const user_id = newId('usr');
  try {
    await tx
      .insertInto('users')
      .values({ id: user_id, email_key: account.email.toLowerCase(), ...account })
      .execute();
  } catch (error) {
    if (!violates(error, 'users_email_key_key')) throw error;
    throw new AppError('CONFLICT', {
      message: 'An account with this e-mail address exists already.',
      cause: error,
    });
  }
  return user_id;
}

/** How many credentials an account has, other than its password. */
export interface WaysIn {
  readonly api_keys: number;
  readonly ssh_keys: number;
  /** Confirmed second factors; a passkey logs in without a password. */
  readonly factors: number;
}

export async function countWaysIn(tx: Tx, user_id: UserId): Promise<WaysIn> {
  const { rows } = await sql<WaysIn>`
    select (select count(*)::int from api_keys
            where user_id = ${user_id} and (expires_at is null or expires_at > now())) as api_keys,
           (select count(*)::int from ssh_keys where user_id = ${user_id}) as ssh_keys,
           (select count(*)::int from mfa_factors
            where user_id = ${user_id} and confirmed_at is not null) as factors`.execute(tx);
  return present(rows[0], 'a count');
}

// Single-use tokens that prove an address: for a password reset and for a change of address.

export const MAIL_TOKEN_LIFETIME_S = 3_600;
type Kind = Database['mail_tokens']['kind'];

/** Issues a token and voids earlier ones of the same kind. */
export async function issueMailToken(
  tx: Tx,
  kind: Kind,
  user_id: UserId,
  email: string | null,
): Promise<string> {
  const token = newToken(MAIL_PREFIX);
  await voidMailTokens(tx, kind, user_id);
  await tx
    .insertInto('mail_tokens')
    .values({
      token_hash: hashToken(token),
      kind,
      user_id,
      email,
      expires_at: sql<Date>`now() + make_interval(secs => ${MAIL_TOKEN_LIFETIME_S})`,
    })
    .execute();
  return token;
}

export async function voidMailTokens(tx: Tx, kind: Kind, user_id: UserId): Promise<void> {
  await tx.deleteFrom('mail_tokens').where('user_id', '=', user_id).where('kind', '=', kind).execute();
}

/** Consumes a token; undefined if it does not exist or has expired. */
export async function consumeMailToken(tx: Tx, kind: Kind, token: string) {
  if (tokenPrefix(token) !== MAIL_PREFIX) return undefined;
  return tx
    .deleteFrom('mail_tokens')
    .where('token_hash', '=', hashToken(token))
    .where('kind', '=', kind)
    .where('expires_at', '>', sql<Date>`now()`)
    .returning(['user_id', 'email'])
    .executeTakeFirst();
}

// The names of actors, for events and the audit log: e-mail addresses of an organisation's members and names of its service
// accounts. An organisation no longer sees the address of a former member.

/** Takes ids, and returns the names by id. */
export async function findActorNames(
  tx: Tx,
  org_id: OrgId,
  actors: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const ids = [...new Set(actors)].filter((id) => /^(usr|sa)_/.test(id));
  if (ids.length === 0) return new Map();
  const { rows } = await sql<{ id: string; name: string }>`
    select u.id, u.email as name from users u join memberships m on m.user_id = u.id
    where m.org_id = ${org_id} and u.id = any(${ids}::text[])
    union all select id, name from service_accounts where org_id = ${org_id} and id = any(${ids}::text[])`.execute(
    tx,
  );
  return new Map(rows.map(({ id, name }) => [id, name]));
}

/** Ids, and the two actors without one. */
const IS_ACTOR = /^((usr|sa|host)_[0-9a-z]+|system|operator)$/;

/** The actor with this id, e-mail address of a member or name of a service account; null: there is none. */
export async function findActor(tx: Tx, org_id: OrgId, text: string): Promise<string | null> {
  if (IS_ACTOR.test(text)) return text;
  const { rows } = await sql<{ id: string }>`
    select u.id from users u join memberships m on m.user_id = u.id
    where m.org_id = ${org_id} and u.email_key = lower(${text})
    union all select id from service_accounts where org_id = ${org_id} and name = ${text}
    limit 1`.execute(tx);
  return rows[0]?.id ?? null;
}
