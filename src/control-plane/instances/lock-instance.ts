/** How a verb on an instance begins: find it for the caller, lock it, and refuse one that is being deleted. */

import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import { findInstance, type InstanceRow, lockInstance } from './store.ts';

/** An instance of the caller's organisation, locked until the transaction's end. @throws AppError NOT_FOUND */
export async function lockInstanceOf(tx: Tx, principal: Principal, id: InstanceId): Promise<InstanceRow> {
  await lockInstance(tx, id, principal.org_id);
  const row = await findInstance(tx, principal.org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  return row;
}

/** @throws AppError CONFLICT */
export function refuseDeleting({ deleting }: Pick<InstanceRow, 'deleting'>): void {
  if (deleting) throw new AppError('CONFLICT', { message: 'The instance is being deleted.' });
}
