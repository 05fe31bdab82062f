import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import { findRetained, insertRestored } from '../disks/generation-store.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { lockInstanceOf, refuseDeleting } from './lock-instance.ts';
import { findInstance, type InstanceRow, setHostKeys, updateInstance } from './store.ts';
import { instanceView } from './view.ts';

/**
 * Creates a new generation that equals an older one; those between stay. The new epoch makes every host's overlay stale. The
 * next boot reports the guest's host key, because the restored disk may have another one, or (a fork's first generation) none.
 * @throws AppError NOT_FOUND, CONFLICT
 */
export async function restoreInstance(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  generation: number,
  /** Gets the version found under the lock; throws to refuse. */
  check: (version: number) => void,
): Promise<InstanceRow> {
  const row = await lockInstanceOf(tx, principal, id);
  if (!(await findRetained(tx, id, generation))) throw noSuchGeneration(generation);
  check(row.version);
  refuseDeleting(row);
  const state = row.state ?? 'stopped';
  if (state !== 'stopped') {
    const message = `The VM is ${state}. Stop it (DELETE …/vm) before you restore its disk.`;
    throw new AppError('CONFLICT', { message });
  }
  await insertRestored(tx, id, generation);
  // Raises the version: an ETag from before the restore must fail.
  await updateInstance(tx, id, {});
  await setHostKeys(tx, id, null);
  const after = present(await findInstance(tx, principal.org_id, id), 'instance after its restore');
  await append(tx, {
    org_id: principal.org_id,
    instance_id: id,
    type: 'instance.restored',
    data: { instance: instanceView(after), restored_from: { generation } },
    actor: actorOf(principal),
  });
  await notify(tx, 'instance', id);
  return after;
}

export function noSuchGeneration(generation: number): AppError {
  return new AppError('NOT_FOUND', {
    message: `The instance has no generation ${generation}: it never existed, or was dropped.`,
  });
}
