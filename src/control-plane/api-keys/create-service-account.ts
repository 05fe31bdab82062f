import { newId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { type Principal, userOf } from '../identity/principal.ts';
import { canonicalScope, requireWithinOwn } from '../identity/scope-within.ts';
import { insertServiceAccount, type ServiceAccountRow } from './service-account-store.ts';

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
