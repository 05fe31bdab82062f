import { effectiveScopes, parseScope } from '../auth/permissions.ts';
import { actorOf, type Principal } from '../auth/principal.ts';
import { API_KEY_PREFIX, hashToken, newToken } from '../auth/tokens.ts';
import { type Db, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { AppError } from '../lib/errors.ts';
import { newId } from '../lib/ids.ts';
import { deleteApiKey, insertApiKey } from './store.ts';

export interface ApiKeyRequest {
  readonly name: string;
  readonly scope: string;
  readonly expires_in_seconds?: number;
}

/** Makes a key whose scope is within its maker's own. The plain key is in the answer and nowhere else. */
export async function createApiKey(db: Db, principal: Principal, request: ApiKeyRequest) {
  const wanted = parseScope(request.scope);
  const beyond =
    request.scope === '*'
      ? principal.scopes.size < effectiveScopes(principal.role, null).size
      : wanted.some((scope) => !principal.scopes.has(scope));
  if (beyond) throw new AppError('FORBIDDEN', { message: 'The requested scope exceeds your own.' });
  const key = newToken(API_KEY_PREFIX);
  const lifetime_s = request.expires_in_seconds;
  return transaction(db, async (tx) => {
    const row = await insertApiKey(tx, {
      id: newId('ak'),
      org_id: principal.org_id,
      user_id: principal.user_id,
      name: request.name,
      scope: request.scope === '*' ? '*' : wanted.join(' '),
      token_hash: hashToken(key),
      prefix: key.slice(0, API_KEY_PREFIX.length + 4),
      last4: key.slice(-4),
      expires_at: lifetime_s === undefined ? null : new Date(Date.now() + lifetime_s * 1000),
    });
    await append(tx, {
      org_id: principal.org_id,
      type: 'api_key.created',
      data: { api_key: { id: row.id, name: row.name, scope: row.scope } },
      actor: actorOf(principal),
    });
    return { ...row, key };
  });
}

/** Revokes one of the caller's keys, at once. @throws AppError NOT_FOUND */
export async function revokeApiKey(
  db: Db,
  principal: Principal,
  id: Parameters<typeof deleteApiKey>[2],
): Promise<void> {
  await transaction(db, async (tx) => {
    if (!(await deleteApiKey(tx, principal, id))) throw new AppError('NOT_FOUND');
    await append(tx, {
      org_id: principal.org_id,
      type: 'api_key.revoked',
      data: { api_key: { id } },
      actor: actorOf(principal),
    });
  });
}
