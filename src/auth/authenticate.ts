import { findApiKeyPrincipal, touchApiKey } from '../api-keys/store.ts';
import type { Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { isId } from '../lib/ids.ts';
import { effectiveScopes } from './permissions.ts';
import type { Principal } from './principal.ts';
import { findSessionPrincipal, sessionExists, touchSession } from './store.ts';
import { API_KEY_PREFIX, hashToken, SESSION_PREFIX, tokenPrefix } from './tokens.ts';

const MINUTE_MS = 60_000;

/**
 * The principal of a request, from its `Authorization` header and, for a session, `Berth-Org`.
 * @throws AppError UNAUTHENTICATED; FORBIDDEN when a session asks for an organisation it is no member of
 */
export async function authenticate(
  tx: Tx,
  authorization: string | undefined,
  org_header: string | undefined,
): Promise<Principal> {
  const token = /^Bearer ([\x21-\x7e]{1,200})$/i.exec(authorization ?? '')?.[1];
  const prefix = token === undefined ? null : tokenPrefix(token);
  if (token === undefined || prefix === null) throw new AppError('UNAUTHENTICATED');
  switch (prefix) {
    case SESSION_PREFIX:
      return authenticateSession(tx, hashToken(token), org_header);
    case API_KEY_PREFIX:
      return authenticateApiKey(tx, hashToken(token));
  }
}

async function authenticateSession(
  tx: Tx,
  token_hash: Buffer,
  org_header: string | undefined,
): Promise<Principal> {
  const org_id = org_header === undefined || org_header === '' ? null : org_header;
  const found =
    org_id === null || isId('org', org_id) ? await findSessionPrincipal(tx, token_hash, org_id) : undefined;
  if (!found) {
    if (org_id !== null && (await sessionExists(tx, token_hash))) {
      throw new AppError('FORBIDDEN', {
        message: 'You are not a member of the organisation that Berth-Org names.',
      });
    }
    throw new AppError('UNAUTHENTICATED');
  }
  if (Date.now() - found.last_seen_at.getTime() > MINUTE_MS) await touchSession(tx, found.id);
  return {
    credential: { kind: 'session', id: found.id },
    user_id: found.user_id,
    org_id: found.org_id,
    role: found.role,
    scopes: effectiveScopes(found.role, null),
  };
}

async function authenticateApiKey(tx: Tx, token_hash: Buffer): Promise<Principal> {
  const found = await findApiKeyPrincipal(tx, token_hash);
  if (!found) throw new AppError('UNAUTHENTICATED');
  const last_used_ms = found.last_used_at?.getTime() ?? 0;
  if (Date.now() - last_used_ms > MINUTE_MS) await touchApiKey(tx, found.id);
  return {
    credential: { kind: 'api_key', id: found.id },
    user_id: found.user_id,
    org_id: found.org_id,
    role: found.role,
    scopes: effectiveScopes(found.role, found.scope),
  };
}
