/**
 * Finds the principal of a request from its credential, which is a session token or an API key. Each request reads the
 * database anew, so a revoked credential is refused at once. `reauthenticate` does the same for a credential that was
 * authenticated before, for example that of an open stream.
 */
import { AppError } from '../../shared/errors.ts';
import { type ApiKeyId, isId, type OrgId, type SessionId } from '../../shared/ids.ts';
import { addressAllowed } from '../../shared/networks.ts';
import type { Db, Tx } from '../db/pool.ts';
import { type ApiKeyPrincipal, findApiKeyPrincipal, touchApiKey } from './api-key-store.ts';
import { effectiveScopes, parseScope } from './permissions.ts';
import type { Credential, Principal } from './principal.ts';
import { findLiveSession, findSessionPrincipal, sessionExists, touchSession } from './store.ts';
import { API_KEY_PREFIX, hashToken, SESSION_PREFIX, tokenPrefix } from './tokens.ts';

type SessionCredential = Extract<Credential, { kind: 'session' }>;

const MINUTE_MS = 60_000;

export interface CredentialHeaders {
  readonly authorization: string | undefined;
  /** `Berth-Org`: the organisation that a session acts in. A key acts only in its own. */
  readonly org: string | undefined;
  /** The peer's address, for keys that are limited to networks. */
  readonly ip: string;
}

const BEARER = /^Bearer ([\x21-\x7e]{1,200})$/i;

/** Whether the checksum is right of an API key or a session token; only a look-up says whether it is valid. */
export function isCredential(token: string): boolean {
  const prefix = tokenPrefix(token);
  return prefix === SESSION_PREFIX || prefix === API_KEY_PREFIX;
}

/**
 * The principal of a request.
 * @throws AppError UNAUTHENTICATED; FORBIDDEN when a session names an organisation it is not a member of, or a key names another than its own
 */
export async function authenticate(db: Db, headers: CredentialHeaders): Promise<Principal> {
  const token = BEARER.exec(headers.authorization ?? '')?.[1];
  const prefix = token === undefined ? null : tokenPrefix(token);
  if (token !== undefined && prefix === SESSION_PREFIX) return ofSession(db, hashToken(token), headers.org);
  if (token !== undefined && prefix === API_KEY_PREFIX) {
    const principal = await ofApiKey(db, hashToken(token), headers.ip);
    // A key must not act in another organisation than the requested one.
    if (headers.org !== undefined && headers.org !== '' && headers.org !== principal.org_id) {
      throw new AppError('FORBIDDEN', {
        message: 'An API key acts in the organisation it was made in, and Berth-Org names another.',
      });
    }
    return principal;
  }
  throw new AppError('UNAUTHENTICATED');
}

async function ofSession(tx: Tx, token_hash: Buffer, org_header: string | undefined): Promise<Principal> {
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
    credential: sessionCredential(found),
    org_id: found.org_id,
    role: found.role,
    scopes: effectiveScopes(found.role, null),
  };
}

function sessionCredential({
  id,
  user_id,
  email_confirmed,
}: Pick<SessionCredential, 'id' | 'user_id' | 'email_confirmed'>): SessionCredential {
  return { kind: 'session', id, user_id, email_confirmed };
}

async function ofApiKey(tx: Tx, secret_hash: Buffer, ip: string): Promise<Principal> {
  const found = await findApiKeyPrincipal(tx, secret_hash);
  if (!found || !addressAllowed(found.allowed_cidrs, ip)) throw new AppError('UNAUTHENTICATED');
  if (Date.now() - (found.last_used_at?.getTime() ?? 0) > MINUTE_MS) await touchApiKey(tx, found.id);
  return principalOfKey(found, secret_hash);
}

function principalOfKey(found: ApiKeyPrincipal, secret_hash: Buffer): Principal {
  const { id, org_id } = found;
  if (found.service_account_id !== null) {
    const within = new Set(parseScope(found.service_account_scope ?? ''));
    return {
      credential: { kind: 'service_key', id, secret_hash, service_account_id: found.service_account_id },
      org_id,
      role: null,
      scopes: new Set(parseScope(found.scope).filter((scope) => within.has(scope))),
    };
  }
  if (found.user_id === null || found.role === null) throw new AppError('UNAUTHENTICATED');
  return {
    credential: {
      kind: 'api_key',
      id,
      secret_hash,
      user_id: found.user_id,
      ends_at: found.ends_at,
      allowed_cidrs: found.allowed_cidrs,
    },
    org_id,
    role: found.role,
    scopes: effectiveScopes(found.role, found.scope),
  };
}

/** What a stream keeps of its credential to reauthorise it. Of a key also the secret, which a rotation replaces under the same id. */
export type KnownCredential =
  | { readonly kind: 'session'; readonly id: SessionId }
  | { readonly kind: 'key'; readonly id: ApiKeyId; readonly secret_hash: Buffer };

/** The present principal of a credential that was authenticated before. @throws AppError UNAUTHENTICATED */
export async function reauthenticate(
  db: Db,
  credential: KnownCredential,
  org_id: OrgId,
  ip: string,
): Promise<Principal> {
  if (credential.kind === 'key') {
    const principal = await ofApiKey(db, credential.secret_hash, ip);
    if (principal.org_id !== org_id) throw new AppError('UNAUTHENTICATED');
    return principal;
  }
  const found = await findLiveSession(db, credential.id, org_id);
  if (!found) throw new AppError('UNAUTHENTICATED');
  return {
    credential: sessionCredential(found),
    org_id,
    role: found.role,
    scopes: effectiveScopes(found.role, null),
  };
}
