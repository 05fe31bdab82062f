import { AppError } from '../../shared/errors.ts';
import type { ServiceAccountId } from '../../shared/ids.ts';
import { isAdmin, type Principal } from '../identity/principal.ts';
import type { KeyViewer } from './store.ts';

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
