/** Creates an API key. Its secret is returned once; the database has its hash. */
import { AppError } from '../../shared/errors.ts';
import { newId, type ServiceAccountId } from '../../shared/ids.ts';
import { canonicalCidrs } from '../../shared/networks.ts';
import { isForeignKeyOf, type Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import {
  canonicalScope,
  parseScope,
  requireWithinOwn,
  type Scope,
  scopeWithin,
} from '../identity/permissions.ts';
import { actorOf, type Principal, userOf } from '../identity/principal.ts';
import { API_KEY_PREFIX, hashToken, newToken } from '../identity/tokens.ts';
import { apiKeyView, boundsWithin, refuseServiceAccount, requireKeysOf } from './model.ts';
import { type ApiKeyRow, findServiceAccountScope, insertApiKey, type PlainKey } from './store.ts';

export interface ApiKeyRequest {
  readonly name: string;
  readonly scope: string;
  readonly expires_in_seconds?: number;
  readonly service_account_id?: ServiceAccountId;
  readonly allowed_cidrs?: readonly string[];
}

/** A new key: the plain text for its holder, and the stored columns. */
export function newPlainKey(): { key: string; kept: PlainKey } {
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
