import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import {
  countPinned,
  findRetained,
  type GenerationChange,
  type GenerationRow,
  updateGeneration,
} from '../disks/generation-store.ts';
import type { Principal } from '../identity/principal.ts';
import { lockInstanceOf, refuseDeleting } from './lock-instance.ts';
import { noSuchGeneration } from './restore-instance.ts';

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
