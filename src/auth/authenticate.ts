import { addressAllowed } from '../api-keys/networks.ts';
import { type ApiKeyPrincipal, findApiKeyPrincipals, proofOf, touchApiKey } from '../api-keys/store.ts';
import { Batched } from '../db/batched.ts';
import type { Proof } from '../db/blind-writes.ts';
import type { Db, Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { type ApiKeyId, isId, type OrgId, type SessionId } from '../lib/ids.ts';
import { effectiveScopes, parseScope } from './permissions.ts';
import type { Credential, Principal } from './principal.ts';
import { findLiveSession, findSessionPrincipal, sessionExists, touchSession } from './store.ts';
import { API_KEY_PREFIX, hashToken, SESSION_PREFIX, tokenPrefix } from './tokens.ts';

type SessionCredential = Extract<Credential, { kind: 'session' }>;

const MINUTE_MS = 60_000;

export interface CredentialHeaders {
  readonly authorization: string | undefined;
  /** `Berth-Org`: the organisation that a session acts in; a key has its own, and none other. */
  readonly org: string | undefined;
  /** The peer's address, for keys bound to networks. */
  readonly ip: string;
}

const BEARER = /^Bearer ([\x21-\x7e]{1,200})$/i;

/** Whether there is a token whose checksum is right; nothing is looked up. */
export function hasToken(authorization: string | undefined): boolean {
  const token = BEARER.exec(authorization ?? '')?.[1];
  return token !== undefined && tokenPrefix(token) !== null;
}

/** Whom a key stood for at its last look-up, for a change whose transaction proves that it still does. */
export interface Remembered {
  readonly principal: Principal;
  readonly proof: Proof;
}

interface Kept {
  readonly found: ApiKeyPrincipal;
  /** Made of it when it is first asked for. */
  as?: Remembered;
}

/** Keys that are remembered; when there are more, all are forgotten. */
const MAX_REMEMBERED = 10_000;

/** Tells who a credential stands for, by the database as it is when it is asked. */
export class Authenticator {
  readonly #db: Db;
  readonly #api_keys: Batched<ApiKeyPrincipal>;
  /** By the hash of their secrets, in hex. */
  readonly #remembered = new Map<string, Kept>();

  constructor(db: Db) {
    this.#db = db;
    this.#api_keys = new Batched((hashes) => findApiKeyPrincipals(db, hashes));
  }

  /**
   * The principal of a request.
   * @throws AppError UNAUTHENTICATED; FORBIDDEN when a session asks for an organisation it is no member of, a key for another than its own
   */
  async authenticate(headers: CredentialHeaders): Promise<Principal> {
    const token = BEARER.exec(headers.authorization ?? '')?.[1];
    const prefix = token === undefined ? null : tokenPrefix(token);
    if (token !== undefined && prefix === SESSION_PREFIX) {
      return ofSession(this.#db, hashToken(token), headers.org);
    }
    if (token !== undefined && prefix === API_KEY_PREFIX) {
      const hash = hashToken(token).toString('hex');
      const found = await this.#api_keys.find(hash);
      this.#remember(hash, found);
      const principal = await ofApiKey(this.#db, found, headers.ip);
      // Never silently another organisation than the one that was asked for.
      if (!isIn(principal, headers.org)) {
        throw new AppError('FORBIDDEN', {
          message: 'An API key acts in the organisation it was made in, and Berth-Org names another.',
        });
      }
      return principal;
    }
    throw new AppError('UNAUTHENTICATED');
  }

  /**
   * The principal of a request by what was found for its key before, at most as long ago as its use need not be noted
   * anew: to go by only together with the proof.
   */
  remembered(headers: CredentialHeaders): Remembered | undefined {
    const token = BEARER.exec(headers.authorization ?? '')?.[1];
    if (token === undefined || tokenPrefix(token) !== API_KEY_PREFIX) return undefined;
    const kept = this.#remembered.get(hashToken(token).toString('hex'));
    if (!kept || isUseDue(kept.found) || !addressAllowed(kept.found.allowed_cidrs, headers.ip))
      return undefined;
    kept.as ??= { principal: principalOfKey(kept.found), proof: proofOf(kept.found) };
    return isIn(kept.as.principal, headers.org) ? kept.as : undefined;
  }

  #remember(hash: string, found: ApiKeyPrincipal | undefined): void {
    if (!found) {
      this.#remembered.delete(hash);
      return;
    }
    if (this.#remembered.size >= MAX_REMEMBERED) this.#remembered.clear();
    // Its use is noted just now, if it was due.
    this.#remembered.set(hash, { found: isUseDue(found) ? { ...found, last_used_at: new Date() } : found });
  }
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

async function ofApiKey(tx: Tx, found: ApiKeyPrincipal | undefined, ip: string): Promise<Principal> {
  if (!found || !addressAllowed(found.allowed_cidrs, ip)) throw new AppError('UNAUTHENTICATED');
  if (isUseDue(found)) await touchApiKey(tx, found.id);
  return principalOfKey(found);
}

function isUseDue({ last_used_at }: ApiKeyPrincipal): boolean {
  return Date.now() - (last_used_at?.getTime() ?? 0) > MINUTE_MS;
}

/** Whether a key acts in what `Berth-Org` names, if it names anything. */
function isIn({ org_id }: Principal, org_header: string | undefined): boolean {
  return org_header === undefined || org_header === '' || org_header === org_id;
}

function principalOfKey(found: ApiKeyPrincipal): Principal {
  if (found.service_account_id !== null) {
    const within = new Set(parseScope(found.service_account_scope ?? ''));
    return {
      credential: {
        kind: 'service_key',
        id: found.id,
        secret_hash: found.hash,
        service_account_id: found.service_account_id,
      },
      org_id: found.org_id,
      role: null,
      scopes: new Set(parseScope(found.scope).filter((scope) => within.has(scope))),
    };
  }
  if (found.user_id === null || found.role === null) throw new AppError('UNAUTHENTICATED');
  return {
    credential: {
      kind: 'api_key',
      id: found.id,
      secret_hash: found.hash,
      user_id: found.user_id,
      ends_at: found.ends_at,
      allowed_cidrs: found.allowed_cidrs,
    },
    org_id: found.org_id,
    role: found.role,
    scopes: effectiveScopes(found.role, found.scope),
  };
}

/** What is kept of a credential that is to be looked at again: of a key the secret too, which its id outlives. */
export type KnownCredential =
  | { readonly kind: 'session'; readonly id: SessionId }
  | { readonly kind: 'key'; readonly id: ApiKeyId; readonly secret_hash: Buffer };

/** Whom a credential that was let in before stands for now. @throws AppError UNAUTHENTICATED */
export async function principalAgain(
  db: Db,
  credential: KnownCredential,
  org_id: OrgId,
  ip: string,
): Promise<Principal> {
  if (credential.kind === 'key') {
    const hash = credential.secret_hash.toString('hex');
    const found = (await findApiKeyPrincipals(db, [hash])).get(hash);
    if (found?.org_id !== org_id) throw new AppError('UNAUTHENTICATED');
    return ofApiKey(db, found, ip);
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
