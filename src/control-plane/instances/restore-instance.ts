/** Sets a disk back to a generation; names and pins generations. */
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import {
  countPinned,
  findRetained,
  type GenerationChange,
  type GenerationRow,
  insertRestored,
  updateGeneration,
} from '../disks/generation-store.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { lockInstanceOf, refuseDeleting } from './change-instance.ts';
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

const PINNED_MAX = 100;

/** Names a generation, or pins it against the instance's retention rules. @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED */
export async function changeGeneration(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  generation: number,
  change: GenerationChange,
): Promise<GenerationRow> {
  const row = await lockInstanceOf(tx, principal, id);
  const before = await findRetained(tx, id, generation);
  if (!before) throw noSuchGeneration(generation);
  refuseDeleting(row);
  if (change.pinned === true && !before.pinned && (await countPinned(tx, id)) >= PINNED_MAX) {
    const message = `An instance can pin at most ${PINNED_MAX} generations. Unpin one first.`;
    throw new AppError('QUOTA_EXCEEDED', { message });
  }
  if (change.name !== undefined || change.pinned !== undefined)
    await updateGeneration(tx, id, generation, change);
  const after = await findRetained(tx, id, generation);
  // Retention dropped it between the two.
  if (!after) throw noSuchGeneration(generation);
  return after;
}
