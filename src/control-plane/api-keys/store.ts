/**
 * SQL of `api_keys` and `service_accounts`. A `KeyViewer` says which keys of an organisation a caller sees: their own,
 * and, for owners and admins, also those of every service account.
 */
import { type Selectable, sql } from 'kysely';
import type { ApiKeyId, OrgId, ServiceAccountId, UserId } from '../../shared/ids.ts';
import { isForeignKeyOf, type Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';

const SHOWN = [
  'id',
  'name',
  'scope',
  'service_account_id',
  'allowed_cidrs',
  'prefix',
  'last4',
  'created_at',
  'last_used_at',
  'expires_at',
  'previous_expires_at',
  'created_by_key',
] as const;

export type ApiKeyRow = Pick<Selectable<Database['api_keys']>, (typeof SHOWN)[number]>;

/** Which of an organisation's keys a caller may see. */
export interface KeyViewer {
  readonly org_id: OrgId;
  readonly user_id: UserId | null;
  readonly service_account_id: ServiceAccountId | null;
  /** Sees the keys of every service account. */
  readonly admin: boolean;
}

export interface PlainKey {
  readonly token_hash: Buffer;
  readonly prefix: string;
  readonly last4: string;
}

export interface NewApiKey extends PlainKey {
  readonly id: ApiKeyId;
  readonly org_id: OrgId;
  readonly user_id: UserId | null;
  readonly service_account_id: ServiceAccountId | null;
  readonly name: string;
  readonly scope: string;
  readonly allowed_cidrs: string[];
  readonly created_at: Date;
  readonly expires_at: Date | null;
  /** The API key that makes it; null: a session does. */
  readonly created_by_key: ApiKeyId | null;
}

/** `no_holder`: the error to throw if the holder no longer exists. */
export async function insertApiKey(
  tx: Tx,
  key: NewApiKey,
  no_holder: (cause: unknown) => Error,
): Promise<ApiKeyRow> {
  try {
    await tx
      .insertInto('api_keys')
      .values({ ...key, parent_key: key.created_by_key })
      .execute();
  } catch (error) {
    throw isForeignKeyOf(error, 'api_keys') ? no_holder(error) : error;
  }
  return { ...key, last_used_at: null, previous_expires_at: null };
}

/** The scope of the service account that is to hold a key; undefined if it does not exist. */
export async function findServiceAccountScope(
  tx: Tx,
  org_id: OrgId,
  id: ServiceAccountId,
): Promise<string | undefined> {
  const row = await tx
    .selectFrom('service_accounts')
    .select('scope')
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .executeTakeFirst();
  return row?.scope;
}

/** The database's time in so many seconds, in the milliseconds that the API shows. */
function secondsFromNow(seconds: number) {
  return sql<Date>`date_trunc('milliseconds', now()) + make_interval(secs => ${seconds})`;
}

/** The keys that `viewer` may see. */
function visible({ user_id, service_account_id, admin }: KeyViewer) {
  const own =
    user_id === null
      ? sql<boolean>`service_account_id = ${service_account_id}`
      : sql<boolean>`user_id = ${user_id}`;
  return admin ? sql<boolean>`(${own} or service_account_id is not null)` : own;
}

export async function listApiKeys(
  tx: Tx,
  viewer: KeyViewer,
  filter: { readonly service_account_id?: ServiceAccountId },
  before: string | null,
  limit: number,
): Promise<ApiKeyRow[]> {
  let query = tx
    .selectFrom('api_keys')
    .select(SHOWN)
    .where('org_id', '=', viewer.org_id)
    .where(visible(viewer));
  if (filter.service_account_id !== undefined) {
    query = query.where('service_account_id', '=', filter.service_account_id);
  }
  if (before !== null) query = query.where('id', '<', before as ApiKeyId);
  return query.orderBy('id', 'desc').limit(limit).execute();
}

export async function findApiKey(tx: Tx, viewer: KeyViewer, id: ApiKeyId): Promise<ApiKeyRow | undefined> {
  return tx
    .selectFrom('api_keys')
    .select(SHOWN)
    .where('org_id', '=', viewer.org_id)
    .where('id', '=', id)
    .where(visible(viewer))
    .executeTakeFirst();
}

/** As {@link findApiKey}, and whether the key has expired. Locks the key until the transaction ends. */
export async function lockApiKey(tx: Tx, viewer: KeyViewer, id: ApiKeyId) {
  return tx
    .selectFrom('api_keys')
    .select(SHOWN)
    .select(sql<boolean>`coalesce(expires_at <= now(), false)`.as('expired'))
    .where('org_id', '=', viewer.org_id)
    .where('id', '=', id)
    .where(visible(viewer))
    .forUpdate()
    .executeTakeFirst();
}

/** The keys made with these. Locks them until the transaction ends, so that nothing more is made with them. */
export async function lockMadeBy(tx: Tx, ids: readonly ApiKeyId[]): Promise<ApiKeyRow[]> {
  return tx
    .selectFrom('api_keys')
    .select(SHOWN)
    .where('parent_key', 'in', [...ids])
    .orderBy('id')
    .forUpdate()
    .execute();
}

/** Replaces the secret. The previous one works for `grace_seconds` more; one before that ends. */
export async function replaceSecret(
  tx: Tx,
  id: ApiKeyId,
  plain: PlainKey,
  grace_seconds: number,
): Promise<ApiKeyRow> {
  return tx
    .updateTable('api_keys')
    .set({
      ...plain,
      previous_hash: grace_seconds === 0 ? null : sql<Buffer>`token_hash`,
      previous_expires_at: grace_seconds === 0 ? null : secondsFromNow(grace_seconds),
    })
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** Deletes a locked key. The keys it made move to its parent, so that the family stays connected. */
export async function deleteApiKey(tx: Tx, id: ApiKeyId): Promise<void> {
  const above = sql`(select parent_key from api_keys where id = ${id})`;
  await sql`update api_keys set parent_key = ${above} where parent_key = ${id}`.execute(tx);
  await sql`update ssh_keys set parent_key = ${above} where parent_key = ${id}`.execute(tx);
  await deleteApiKeys(tx, [id]);
}

/** Deletes locked keys. */
export async function deleteApiKeys(tx: Tx, ids: readonly ApiKeyId[]): Promise<void> {
  await tx
    .deleteFrom('api_keys')
    .where('id', 'in', [...ids])
    .execute();
}

/** Claims the keys that expire within `days`, each once per expiry. */
export async function takeExpiring(tx: Tx, days: number, limit: number) {
  const due = tx
    .selectFrom('api_keys')
    .select('id')
    .where('expires_at', '>', sql<Date>`now()`)
    .where('expires_at', '<', sql<Date>`now() + make_interval(days => ${days})`)
    .where(sql<boolean>`notified_expires_at is distinct from expires_at`)
    .orderBy('expires_at')
    .limit(limit)
    .forUpdate()
    .skipLocked();
  return tx
    .updateTable('api_keys')
    .set({ notified_expires_at: sql`expires_at` })
    .where('id', 'in', due)
    .returning([...SHOWN, 'org_id', 'user_id'])
    .execute();
}

/** Deletes all keys of a holder in an organisation. */
export async function deleteKeysOf(
  tx: Tx,
  org_id: OrgId,
  holder: { readonly user_id: UserId } | { readonly service_account_id: ServiceAccountId },
): Promise<ApiKeyRow[]> {
  const query = tx.deleteFrom('api_keys').where('org_id', '=', org_id).returning(SHOWN);
  return 'user_id' in holder
    ? query.where('user_id', '=', holder.user_id).execute()
    : query.where('service_account_id', '=', holder.service_account_id).execute();
}

const ACCOUNT_SHOWN = ['id', 'name', 'scope', 'created_at'] as const;

export type ServiceAccountRow = Awaited<ReturnType<typeof insertServiceAccount>>;

export interface NewServiceAccount {
  readonly id: ServiceAccountId;
  readonly org_id: OrgId;
  readonly name: string;
  readonly scope: string;
  readonly created_by: UserId;
}

export async function insertServiceAccount(tx: Tx, account: NewServiceAccount) {
  return tx.insertInto('service_accounts').values(account).returning(ACCOUNT_SHOWN).executeTakeFirstOrThrow();
}

export async function findServiceAccount(tx: Tx, org_id: OrgId, id: ServiceAccountId) {
  return tx
    .selectFrom('service_accounts')
    .select(ACCOUNT_SHOWN)
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .executeTakeFirst();
}

export async function listServiceAccounts(tx: Tx, org_id: OrgId, before: string | null, limit: number) {
  let query = tx.selectFrom('service_accounts').select(ACCOUNT_SHOWN).where('org_id', '=', org_id);
  if (before !== null) query = query.where('id', '<', before as ServiceAccountId);
  return query.orderBy('id', 'desc').limit(limit).execute();
}

/** Deletes the account with its keys (foreign key) and notifications. */
export async function deleteServiceAccount(tx: Tx, org_id: OrgId, id: ServiceAccountId) {
  const gone = await tx
    .deleteFrom('service_accounts')
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .returning(ACCOUNT_SHOWN)
    .executeTakeFirst();
  // After the account: raising notifications locks the account.
  if (gone) await tx.deleteFrom('notifications').where('recipient', '=', id).execute();
  return gone;
}
