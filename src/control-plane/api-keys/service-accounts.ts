/** Creates and removes service accounts, which own API keys instead of people. */
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { newId, type ServiceAccountId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { canonicalScope, requireWithinOwn } from '../identity/permissions.ts';
import { actorOf, type Principal, userOf } from '../identity/principal.ts';
import { revokeKeysOf } from './revoke-api-key.ts';
import { deleteServiceAccount, insertServiceAccount, type ServiceAccountRow } from './store.ts';

/** Creates a service account with a scope within its creator's own. @throws AppError FORBIDDEN, INVALID_REQUEST */
export async function createServiceAccount(
  tx: Tx,
  principal: Principal,
  { name, scope }: { readonly name: string; readonly scope: string },
): Promise<ServiceAccountRow> {
  requireWithinOwn(principal, scope);
  return insertServiceAccount(tx, {
    id: newId('sa'),
    org_id: principal.org_id,
    name,
    scope: canonicalScope(scope),
    created_by: userOf(principal),
  });
}

/** Deletes a service account and revokes its keys. @throws AppError NOT_FOUND */
export async function removeServiceAccount(
  tx: Tx,
  principal: Principal,
  id: ServiceAccountId,
): Promise<ServiceAccountRow> {
  await revokeKeysOf(tx, principal.org_id, { service_account_id: id }, actorOf(principal));
  const gone = await deleteServiceAccount(tx, principal.org_id, id);
  if (!gone) throw new AppError('NOT_FOUND');
  return gone;
}

export function serviceAccountView(row: ServiceAccountRow) {
  return { id: row.id, name: row.name, scope: row.scope, created_at: rfc3339(row.created_at) };
}
