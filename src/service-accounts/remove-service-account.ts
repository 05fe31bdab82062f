import { revokeKeysOf } from '../api-keys/revoke-api-key.ts';
import { actorOf, type Principal } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import type { ServiceAccountId } from '../lib/ids.ts';
import { deleteServiceAccount, type ServiceAccountRow } from './store.ts';

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
