import { type Principal, userOf } from '../auth/principal.ts';
import { canonicalScope, requireWithinOwn } from '../auth/scope-within.ts';
import type { Tx } from '../db/pool.ts';
import { newId } from '../lib/ids.ts';
import { insertServiceAccount, type ServiceAccountRow } from './store.ts';

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
