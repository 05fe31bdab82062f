/** Connections of API callers to TCP ports of a guest. */

import { AppError } from '../../shared/errors.ts';
import type { InstanceId, OrgId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { type KnownCredential, reauthenticate } from '../identity/authenticate.ts';
import { findInstance } from '../instances/store.ts';
import { type CommandPlace, placeOf } from './exec-command.ts';
import { ruleOrThrow } from './request-change.ts';
import { markUsed } from './store.ts';

/**
 * Reauthorises the holder and finds the host of the VM. Called periodically while a connection is open, which also marks the
 * VM as used.
 * @throws AppError UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, CONFLICT, VM_NOT_RUNNING
 */
export async function forwardPlace(
  db: Db,
  holder: { readonly credential: KnownCredential; readonly org_id: OrgId; readonly instance_id: InstanceId },
  ip: string,
): Promise<CommandPlace> {
  const { scopes } = await reauthenticate(db, holder.credential, holder.org_id, ip);
  if (!scopes.has('vm:write')) throw new AppError('FORBIDDEN');
  const row = await findInstance(db, holder.org_id, holder.instance_id);
  if (!row) throw new AppError('NOT_FOUND');
  ruleOrThrow(row, 'exec');
  await markUsed(db, row.id);
  return placeOf(row);
}
