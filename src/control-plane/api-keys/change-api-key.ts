/**
 * Creates, rotates and revokes API keys. `reportExpiry` raises an event for each key that expires within seven days.
 *
 * - The plain secret is returned once, when it is made. The database has its hash.
 * - A rotation gives a key a new secret. The previous secret stays valid for the grace period that the caller asks for.
 * - Revoking a key leaves the keys that were made with it, unless the caller revokes all of them together.
 */
import { AppError } from '../../shared/errors.ts';
import { type ApiKeyId, newId, type OrgId, type ServiceAccountId, type UserId } from '../../shared/ids.ts';
import { canonicalCidrs } from '../../shared/networks.ts';
import { type Db, isForeignKeyOf, type Tx, transaction } from '../db/pool.ts';
import { append, appendPrivate } from '../events/append.ts';
import {
  canonicalScope,
  parseScope,
  requireWithinOwn,
  type Scope,
  scopeWithin,
} from '../identity/permissions.ts';
import { actorOf, isAdmin, type Principal, userOf } from '../identity/principal.ts';
import { API_KEY_PREFIX, hashToken, newToken } from '../identity/tokens.ts';
import { apiKeyView, boundsWithin, refuseServiceAccount, requireKeysOf, viewerOf } from './model.ts';
import {
  type ApiKeyRow,
  deleteApiKey,
  deleteApiKeys,
  deleteKeysOf,
  findServiceAccountScope,
  insertApiKey,
  lockApiKey,
  lockMadeBy,
  type PlainKey,
  replaceSecret,
  takeExpiring,
} from './store.ts';

export interface ApiKeyRequest {
  readonly name: string;
  readonly scope: string;
  readonly expires_in_seconds?: number;
  readonly service_account_id?: ServiceAccountId;
  readonly allowed_cidrs?: readonly string[];
}

/** A new key: the plain text for its holder, and the stored columns. */
function newPlainKey(): { key: string; kept: PlainKey } {
  const key = newToken(API_KEY_PREFIX);
  return {
    key,
    kept: {
      token_hash: hashToken(key),
      prefix: key.slice(0, API_KEY_PREFIX.length + 4),
      last4: key.slice(-4),
    },
  };
}

/**
 * Makes a key for the caller or a service account, within the caller's scope and bounds. Only the result has the plain
 * key. @throws AppError FORBIDDEN, INVALID_REQUEST, NOT_FOUND
 */
export async function createApiKey(
  tx: Tx,
  principal: Principal,
  request: ApiKeyRequest,
): Promise<ApiKeyRow & { key: string }> {
  refuseServiceAccount(principal);
  const { service_account_id = null } = request;
  if (service_account_id !== null) requireKeysOf(principal, service_account_id);
  requireWithinOwn(principal, request.scope);
  const { expires_in_seconds: lifetime_s } = request;
  const created_at = new Date();
  const bounds = boundsWithin(principal, {
    expires_at: lifetime_s === undefined ? null : new Date(created_at.getTime() + lifetime_s * 1000),
    allowed_cidrs: canonicalCidrs(request.allowed_cidrs ?? []),
  });
  if (service_account_id !== null) {
    await requireWithinServiceAccount(tx, principal, service_account_id, request.scope);
  }
  const { key, kept } = newPlainKey();
  const new_key = {
    ...kept,
    id: newId('ak'),
    org_id: principal.org_id,
    user_id: service_account_id === null ? userOf(principal) : null,
    service_account_id,
    name: request.name,
    scope: canonicalScope(request.scope),
    allowed_cidrs: [...bounds.allowed_cidrs],
    created_at,
    expires_at: bounds.expires_at,
    created_by_key: principal.credential.kind === 'api_key' ? principal.credential.id : null,
  };
  const row = await insertApiKey(tx, new_key, (cause) => {
    // The holder, or the key that makes this one, was deleted concurrently.
    const maker_ended = isForeignKeyOf(cause, 'api_keys', 'api_keys_parent_key_fkey');
    return new AppError(service_account_id === null || maker_ended ? 'UNAUTHENTICATED' : 'NOT_FOUND', {
      cause,
    });
  });
  await append(tx, {
    org_id: principal.org_id,
    type: 'api_key.created',
    data: { api_key: apiKeyView(row) },
    actor: actorOf(principal),
  });
  return { ...row, key };
}

async function requireWithinServiceAccount(
  tx: Tx,
  principal: Principal,
  id: ServiceAccountId,
  scope: string,
): Promise<void> {
  const held_scope = await findServiceAccountScope(tx, principal.org_id, id);
  if (held_scope === undefined) throw new AppError('NOT_FOUND');
  const held: ReadonlySet<Scope> = new Set(parseScope(held_scope));
  if (scopeWithin(held, scope)) return;
  throw new AppError('FORBIDDEN', {
    message: `The requested scope exceeds the service account's, which is: ${held_scope}`,
  });
}

export const KEY_GRACE_MAX_S = 7 * 86_400;

/**
 * Gives a key a new secret under the same id. The previous secret works for `grace_seconds` more; a second rotation ends
 * it at once, because a key has at most two. `check` throws if the key has changed since the caller read it. @throws AppError NOT_FOUND, CONFLICT
 */
export async function rotateApiKey(
  tx: Tx,
  principal: Principal,
  id: ApiKeyId,
  grace_seconds: number,
  check: (before: ApiKeyRow) => void = () => undefined,
): Promise<ApiKeyRow & { key: string }> {
  refuseServiceAccount(principal);
  const before = await lockApiKey(tx, viewerOf(principal), id);
  if (!before) throw new AppError('NOT_FOUND');
  check(before);
  if (before.expired) {
    throw new AppError('CONFLICT', { message: 'The key has expired. Make a new one (POST /v1/api-keys).' });
  }
  const { key, kept } = newPlainKey();
  const row = await replaceSecret(tx, id, kept, grace_seconds);
  await append(tx, {
    org_id: principal.org_id,
    type: 'api_key.rotated',
    data: { api_key: apiKeyView(row) },
    actor: actorOf(principal),
  });
  return { ...row, key };
}

/** Throws if the key has changed since the caller read it. */
type Check = (before: ApiKeyRow) => void;

/** Revokes a key at once, with its previous secret. Keys made with it remain. @throws AppError NOT_FOUND */
export async function revokeApiKey(
  tx: Tx,
  principal: Principal,
  id: ApiKeyId,
  check: Check = () => undefined,
): Promise<ApiKeyRow> {
  const gone = await lockedApiKey(tx, principal, id, check);
  await deleteApiKey(tx, id);
  await appendRevoked(tx, principal.org_id, actorOf(principal), gone);
  return gone;
}

/**
 * The key and all keys made with it, directly or through others. They are locked, so they make no further keys until the
 * transaction ends. Call {@link revokeApiKeys} after revoking what else they made. @throws AppError NOT_FOUND, FORBIDDEN
 */
export async function lockWithDescendants(
  tx: Tx,
  principal: Principal,
  id: ApiKeyId,
  check: Check = () => undefined,
): Promise<ApiKeyRow[]> {
  const family = [await lockedApiKey(tx, principal, id, check)];
  for (let next: ApiKeyRow[] = family; next.length > 0; ) {
    next = await lockMadeBy(
      tx,
      next.map((key) => key.id),
    );
    family.push(...next);
  }
  if (!isAdmin(principal) && family.some((key) => key.service_account_id !== null)) {
    throw new AppError('FORBIDDEN', {
      message:
        'Some keys that were made with it belong to service accounts. Revoke it alone, and ask an owner or admin to revoke those.',
    });
  }
  return family;
}

/** Revokes a whole family, see {@link lockWithDescendants}. */
export async function revokeApiKeys(
  tx: Tx,
  principal: Principal,
  family: readonly ApiKeyRow[],
): Promise<void> {
  await deleteApiKeys(
    tx,
    family.map((key) => key.id),
  );
  for (const gone of family) await appendRevoked(tx, principal.org_id, actorOf(principal), gone);
}

async function lockedApiKey(tx: Tx, principal: Principal, id: ApiKeyId, check: Check): Promise<ApiKeyRow> {
  refuseServiceAccount(principal);
  const found = await lockApiKey(tx, viewerOf(principal), id);
  if (!found) throw new AppError('NOT_FOUND');
  check(found);
  return found;
}

/** Revokes every key of a leaving member or a deleted service account. */
export async function revokeKeysOf(
  tx: Tx,
  org_id: OrgId,
  holder: { readonly user_id: UserId } | { readonly service_account_id: ServiceAccountId },
  actor: string,
): Promise<void> {
  for (const gone of await deleteKeysOf(tx, org_id, holder)) await appendRevoked(tx, org_id, actor, gone);
}

async function appendRevoked(tx: Tx, org_id: OrgId, actor: string, row: ApiKeyRow): Promise<void> {
  await append(tx, { org_id, type: 'api_key.revoked', data: { api_key: apiKeyView(row) }, actor });
}

const TOLD_BEFORE_DAYS = 7;
const BATCH = 100;

/** Raises an event for every key that expires within seven days, once per expiry. */
export async function reportExpiry(db: Db): Promise<void> {
  for (;;) {
    const told = await transaction(db, async (tx) => {
      const rows = await takeExpiring(tx, TOLD_BEFORE_DAYS, BATCH);
      for (const { org_id, user_id, ...row } of rows) {
        const data = { api_key: apiKeyView(row) };
        await appendPrivate(tx, { type: 'api_key.expiring', org_id, user_id, data, actor: 'system' });
      }
      return rows.length;
    });
    if (told < BATCH) return;
  }
}
