import { actorOf, type Principal } from '../auth/principal.ts';
import { notify } from '../db/notify.ts';
import { type Tx, violates } from '../db/pool.ts';
import { destroyDataKeys } from '../disks/data-keys.ts';
import { append } from '../events/append.ts';
import { present } from '../lib/assert.ts';
import { AppError } from '../lib/errors.ts';
import type { InstanceId } from '../lib/ids.ts';
import {
  findInstance,
  type InstanceChange,
  type InstanceRow,
  lockInstance,
  markDeleting,
  updateInstance,
} from './store.ts';
import { instanceView } from './view.ts';

/** Changes name, labels and settings; cpus and memory only while stopped. */
export async function changeInstance(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  change: InstanceChange,
  /** Called with the version found under the lock; throws to refuse. */
  check: (version: number) => void,
): Promise<InstanceRow> {
  try {
    await lockInstance(tx, id);
    const row = await findInstance(tx, principal.org_id, id);
    if (!row) throw new AppError('NOT_FOUND');
    check(row.version);
    if (row.deleting) throw new AppError('CONFLICT', { message: 'The instance is being deleted.' });
    const state = row.state ?? 'stopped';
    if ((change.cpus !== undefined || change.memory_mib !== undefined) && state !== 'stopped') {
      throw new AppError('CONFLICT', {
        message: `The VM is ${state}; cpus and memory_mib change while it is stopped.`,
      });
    }
    await updateInstance(tx, id, change);
    if (row.host_id) await notify(tx, 'host', row.host_id);
    if (change.wake_on_connect !== undefined) await notify(tx, 'routes');
    return present(await findInstance(tx, principal.org_id, id), 'instance after its change');
  } catch (error) {
    if (violates(error, 'instances_org_id_name_key')) {
      throw new AppError('CONFLICT', {
        message: `An instance named "${change.name}" exists already.`,
        cause: error,
      });
    }
    throw error;
  }
}

/**
 * Begins the deletion, from any state. The disk's keys go at once: nothing that only it could read can be read any
 * more. The hosts end the VM and remove what they hold, then the task
 * `free-deleted` removes the objects and the row. Saying it again changes nothing.
 */
export async function deleteInstance(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  check: (version: number) => void,
): Promise<InstanceRow> {
  await lockInstance(tx, id);
  const row = await findInstance(tx, principal.org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  check(row.version);
  if (row.deleting) return row;
  await markDeleting(tx, id);
  await destroyDataKeys(tx, id);
  const after = present(await findInstance(tx, principal.org_id, id), 'instance after its change');
  await append(tx, {
    org_id: principal.org_id,
    instance_id: id,
    type: 'instance.deleted',
    data: { instance: instanceView(after) },
    actor: actorOf(principal),
  });
  if (row.host_id) await notify(tx, 'host', row.host_id);
  await notify(tx, 'routes');
  await notify(tx, 'deleting');
  return after;
}
