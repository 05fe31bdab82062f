import { type Selectable, sql } from 'kysely';
import type { Proof } from '../db/blind-writes.ts';
import { lookUp } from '../db/look-up.ts';
import { LookUpStatement } from '../db/look-up-statement.ts';
import { atCommit, type Db, isForeignKeyOf, type Tx } from '../db/pool.ts';
import { RowInsert } from '../db/row-insert.ts';
import type { Database, Role } from '../db/tables.ts';
import type { ApiKeyId, OrgId, ServiceAccountId, UserId } from '../lib/ids.ts';

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

/** What a caller may see of an organisation's keys: a person's own, a service account's own, or also all of these. */
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

const INSERT = new RowInsert('api_keys', {
  id: 'text',
  org_id: 'text',
  user_id: 'text',
  service_account_id: 'text',
  name: 'text',
  scope: 'text',
  allowed_cidrs: 'text[]',
  token_hash: 'bytea',
  prefix: 'text',
  last4: 'text',
  created_at: 'timestamptz',
  expires_at: 'timestamptz',
  created_by_key: 'text',
  parent_key: 'text',
});

/** Written with COMMIT; what is kept is all known before. `no_holder`: what to throw where the holder has ended. */
export async function insertApiKey(
  tx: Tx,
  key: NewApiKey,
  no_holder: (cause: unknown) => Error,
): Promise<ApiKeyRow> {
  const { id, org_id, user_id, service_account_id, name, scope, allowed_cidrs } = key;
  const { token_hash, prefix, last4, created_at, expires_at, created_by_key: maker } = key;
  const holder = [id, org_id, user_id, service_account_id, name, scope, allowed_cidrs];
  const statement = INSERT.of([...holder, token_hash, prefix, last4, created_at, expires_at, maker, maker]);
  await atCommit(tx, statement, (error) => (isForeignKeyOf(error, 'api_keys') ? no_holder(error) : error));
  return { ...key, last_used_at: null, previous_expires_at: null };
}

/** The time in so many seconds by the database's clock, to the millisecond: what is shown is what is kept. */
function secondsFromNow(seconds: number) {
  return sql<Date>`date_trunc('milliseconds', now()) + make_interval(secs => ${seconds})`;
}

/** What a request with a key acts as. */
export interface ApiKeyPrincipal {
  /** Of the secret that it was found by. */
  readonly hash: Buffer;
  readonly id: ApiKeyId;
  readonly org_id: OrgId;
  /** The maker, or null for a service account's key. */
  readonly user_id: UserId | null;
  /** The maker's present role; null exactly when `user_id` is. */
  readonly role: Role | null;
  readonly service_account_id: ServiceAccountId | null;
  readonly scope: string;
  /** The service account's own scope; null exactly when `service_account_id` is. */
  readonly service_account_scope: string | null;
  readonly allowed_cidrs: string[];
  readonly last_used_at: Date | null;
  /** When it expires, or its grace if that was what was found; null: never. */
  readonly ends_at: Date | null;
}

/**
 * On the way of every request with a key: constant text, so that nothing is composed; both hashes are unique indexes.
 * Subqueries and not joins: planning costs more than running here, and joins would double it.
 */
const findPrincipals = (hashes: string) => `
  select wanted.hash, k.id, k.org_id, k.user_id, k.service_account_id, k.scope, k.allowed_cidrs, k.last_used_at,
         case when k.token_hash = wanted.hash then k.expires_at else least(k.expires_at, k.previous_expires_at) end as ends_at,
         (select m.role from memberships m where m.org_id = k.org_id and m.user_id = k.user_id) as role,
         (select s.scope from service_accounts s where s.id = k.service_account_id) as service_account_scope
  from (${hashes}) as wanted (hash)
  join api_keys k on k.token_hash = wanted.hash
                  or (k.previous_hash = wanted.hash and k.previous_expires_at > now())
  where k.expires_at is null or k.expires_at > now()`;
const FIND_PRINCIPALS = new LookUpStatement(['bytea'], findPrincipals);

/**
 * The live keys with these hashes, or that had them before a rotation whose grace is not over; by hash, in hex. A
 * person's key ends with the membership and a service account's with it (foreign keys), so the holder is always there.
 */
export async function findApiKeyPrincipals(
  db: Db,
  hashes: readonly string[],
): Promise<ReadonlyMap<string, ApiKeyPrincipal>> {
  const wanted = hashes.map((hex) => [Buffer.from(hex, 'hex')]);
  const rows = await lookUp(db, FIND_PRINCIPALS.of<ApiKeyPrincipal>(wanted));
  return new Map(rows.map((row) => [row.hash.toString('hex'), row]));
}

/** That each key still stands for what was told of it, by the secret's hash: a division by zero where one does not. */
const STAND_FOR = new LookUpStatement(
  ['bytea', 'text', 'text', 'text', 'text[]', 'text', 'timestamptz'],
  (values) => `
  select 1 / (not exists (
    select from (${values}) as told (hash, id, role, scope, allowed_cidrs, service_account_scope, ends_at)
    where told.hash is not null and not exists (
      select from (${findPrincipals('select told.hash')}) as found
      where (found.id, found.role, found.scope, found.allowed_cidrs, found.service_account_scope, found.ends_at)
        is not distinct from
            (told.id, told.role, told.scope, told.allowed_cidrs, told.service_account_scope, told.ends_at))
  ))::int`,
);

/** For a transaction that goes by what a look-up has told of a key before it. */
export function proofOf(told: ApiKeyPrincipal): Proof {
  const { hash, id, role, scope, allowed_cidrs, service_account_scope, ends_at } = told;
  return { by: STAND_FOR, told: [hash, id, role, scope, allowed_cidrs, service_account_scope, ends_at] };
}

/** Notes use, at most once a minute. */
export async function touchApiKey(tx: Tx, id: ApiKeyId): Promise<void> {
  await tx
    .updateTable('api_keys')
    .set({ last_used_at: sql`now()` })
    .where('id', '=', id)
    .where((eb) =>
      eb.or([
        eb('last_used_at', 'is', null),
        eb('last_used_at', '<', sql<Date>`now() - interval '1 minute'`),
      ]),
    )
    .execute();
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

/** As {@link findApiKey}, held until the transaction's end, and whether the key is past its time. */
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

/** The keys that these have made, held until the transaction's end. While they are held nothing more is made with them. */
export async function lockMadeBy(tx: Tx, ids: readonly ApiKeyId[]): Promise<ApiKeyRow[]> {
  return tx
    .selectFrom('api_keys')
    .select(SHOWN)
    .where('parent_key', 'in', [...ids])
    .orderBy('id')
    .forUpdate()
    .execute();
}

/** Gives the key a new secret; the one before goes on for `grace_seconds`, and any before that one ends. */
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

/** Ends a key that is held. What it made hangs under what made it from now on, so that no lineage breaks off. */
export async function deleteApiKey(tx: Tx, id: ApiKeyId): Promise<void> {
  const above = sql`(select parent_key from api_keys where id = ${id})`;
  await sql`update api_keys set parent_key = ${above} where parent_key = ${id}`.execute(tx);
  await sql`update ssh_keys set parent_key = ${above} where parent_key = ${id}`.execute(tx);
  await deleteApiKeys(tx, [id]);
}

/** Ends keys that are held, with all that they made. */
export async function deleteApiKeys(tx: Tx, ids: readonly ApiKeyId[]): Promise<void> {
  await tx
    .deleteFrom('api_keys')
    .where('id', 'in', [...ids])
    .execute();
}

/** Keys that end within `days` and were not taken for that expiry before; none is taken twice. */
export async function takeExpiring(tx: Tx, days: number, limit: number) {
  const due = tx
    .selectFrom('api_keys')
    .select('id')
    .where('expires_at', '>', sql<Date>`now()`)
    .where('expires_at', '<', sql<Date>`now() + make_interval(days => ${days})`)
    .where(sql<boolean>`expiry_told is distinct from expires_at`)
    .orderBy('expires_at')
    .limit(limit)
    .forUpdate()
    .skipLocked();
  return tx
    .updateTable('api_keys')
    .set({ expiry_told: sql`expires_at` })
    .where('id', 'in', due)
    .returning([...SHOWN, 'org_id', 'user_id'])
    .execute();
}

/** All keys that one holder has in an organisation. */
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
