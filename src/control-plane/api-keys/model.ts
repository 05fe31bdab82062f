/**
 * Pure functions about API keys: how the API shows a key, which keys a caller may see or change, and the bounds (expiry
 * and networks) of a key that is made with another key.
 */
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { ServiceAccountId } from '../../shared/ids.ts';
import { networkWithin } from '../../shared/networks.ts';
import { isAdmin, type Principal } from '../identity/principal.ts';
import type { ApiKeyRow, KeyViewer } from './store.ts';

/** A key as the API shows it, without the secret. */
export function apiKeyView(row: ApiKeyRow) {
  return {
    id: row.id,
    name: row.name,
    scope: row.scope,
    service_account_id: row.service_account_id,
    allowed_cidrs: row.allowed_cidrs,
    prefix: row.prefix,
    last4: row.last4,
    created_at: rfc3339(row.created_at),
    last_used_at: timeOrNull(row.last_used_at),
    expires_at: timeOrNull(row.expires_at),
    previous_expires_at: timeOrNull(row.previous_expires_at),
    created_by_key: row.created_by_key,
  };
}

function timeOrNull(time: Date | null): string | null {
  return time === null ? null : rfc3339(time);
}

export function viewerOf(principal: Principal): KeyViewer {
  const { credential, org_id } = principal;
  return credential.kind === 'service_key'
    ? { org_id, user_id: null, service_account_id: credential.service_account_id, admin: false }
    : { org_id, user_id: credential.user_id, service_account_id: null, admin: isAdmin(principal) };
}

/** @throws AppError FORBIDDEN: a service account may read its keys, never make, rotate or revoke any */
export function refuseServiceAccount({ credential }: Principal): void {
  if (credential.kind === 'service_key') {
    throw new AppError('FORBIDDEN', { message: 'A service account may not make, rotate or revoke keys.' });
  }
}

/** @throws AppError FORBIDDEN unless the principal may use this service account's keys */
export function requireKeysOf(principal: Principal, service_account_id: ServiceAccountId): void {
  const { credential } = principal;
  const own = credential.kind === 'service_key' && credential.service_account_id === service_account_id;
  if (!own && !isAdmin(principal)) {
    throw new AppError('FORBIDDEN', { message: 'Keys of service accounts need the role owner or admin.' });
  }
}

/** When a key expires, and where it works. */
export interface Bounds {
  /** Null: never. */
  readonly expires_at: Date | null;
  /** In canonical form; empty: usable from everywhere. */
  readonly allowed_cidrs: readonly string[];
}

/**
 * The requested bounds; absent ones are the caller's. A key that is made with an API key may not outlive that key nor work
 * from other networks. Otherwise a key valid for an hour could extend its own scope for ever.
 * @throws AppError FORBIDDEN if they exceed the caller's
 */
export function boundsWithin({ credential }: Principal, asked: Bounds): Bounds {
  if (credential.kind !== 'api_key') return asked;
  const { ends_at, allowed_cidrs: own } = credential;
  if (ends_at !== null && asked.expires_at !== null && asked.expires_at > ends_at) {
    throw new AppError('FORBIDDEN', {
      message: `The key would outlive the one that makes it, which ends at ${rfc3339(ends_at)}.`,
    });
  }
  const beyond = own.length === 0 ? undefined : asked.allowed_cidrs.find((cidr) => !networkWithin(cidr, own));
  if (beyond !== undefined) {
    throw new AppError('FORBIDDEN', {
      message: `The key would work from ${beyond}, where the one that makes it does not.`,
    });
  }
  return {
    expires_at: asked.expires_at ?? ends_at,
    allowed_cidrs: asked.allowed_cidrs.length === 0 ? own : asked.allowed_cidrs,
  };
}
