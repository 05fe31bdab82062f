/**
 * SQL of API keys as credentials: finds the key of a request by the hash of its secret, and the person or service
 * account that the request acts for. The API's calls on keys are in `api-keys/`.
 */
import { CompiledQuery, sql } from 'kysely';
import type { ApiKeyId, OrgId, ServiceAccountId, UserId } from '../../shared/ids.ts';
import type { Role } from '../../shared/roles.ts';
import type { Tx } from '../db/pool.ts';

export interface ApiKeyPrincipal {
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
  /** When the secret expires: the key's expiry, or the end of a rotation's grace; null: never. */
  readonly ends_at: Date | null;
}

/** Constant text, because every request runs it. Subqueries, not joins, which would take twice as long to plan. */
const FIND_PRINCIPAL = `
  select k.id, k.org_id, k.user_id, k.service_account_id, k.scope, k.allowed_cidrs, k.last_used_at,
         case when k.token_hash = $1 then k.expires_at else least(k.expires_at, k.previous_expires_at) end as ends_at,
         (select m.role from memberships m where m.org_id = k.org_id and m.user_id = k.user_id) as role,
         (select s.scope from service_accounts s where s.id = k.service_account_id) as service_account_scope
  from api_keys k
  where (k.token_hash = $1 or (k.previous_hash = $1 and k.previous_expires_at > now()))
    and (k.expires_at is null or k.expires_at > now())`;

/**
 * The live key with this secret, or one whose secret this was before a rotation, within the grace. A foreign key deletes
 * a key with its holder's membership or service account, so the holder exists.
 */
export async function findApiKeyPrincipal(tx: Tx, hash: Buffer): Promise<ApiKeyPrincipal | undefined> {
  const query = CompiledQuery.raw(FIND_PRINCIPAL, [hash]) as CompiledQuery<ApiKeyPrincipal>;
  return (await tx.executeQuery(query)).rows[0];
}

/** Records that the key was used, at most once a minute. */
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
