import { AppError } from '../../shared/errors.ts';
import type { ServiceAccountId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { revokeKeysOf } from './revoke-api-key.ts';
import { deleteServiceAccount, type ServiceAccountRow } from './service-account-store.ts';

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
