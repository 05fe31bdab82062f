/** Creates an instance from a generation of another. Both share the objects. */
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { shareDataKeys } from '../disks/data-keys.ts';
import { copyDisk, findRetained } from '../disks/generation-store.ts';
import type { Principal } from '../identity/principal.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { lockInstanceOf, refuseDeleting } from './change-instance.ts';
import { announce, type CreationContext, insertNew } from './create-instance.ts';
import { noSuchGeneration } from './restore-instance.ts';
import type { InstanceRow } from './store.ts';

export interface ForkRequest {
  readonly name: string;
  /** Null: the last durable generation. */
  readonly generation: number | null;
}

/**
 * Creates an instance whose disk begins as a generation of another's, in any state of that one's VM. No object is copied: the
 * fork holds the same objects and gets the keys to them, so it outlives its parent. The parent writes with a new data key
 * from then on. The fork has its own data keys and SSH port, a new host key at its first boot, the caller's SSH keys, and
 * `wake_on_connect` off.
 * @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED, UNAVAILABLE
 */
export async function forkInstance(
  tx: Tx,
  principal: Principal,
  context: CreationContext,
  from: InstanceId,
  { name, generation }: ForkRequest,
): Promise<InstanceRow> {
  // Lock order, as in a start: the instance before its organisation.
  const parent = await lockInstanceOf(tx, principal, from);
  const wanted = generation ?? parent.generation;
  if (generation !== null && !(await findRetained(tx, from, generation))) throw noSuchGeneration(generation);
  refuseDeleting(parent);
  if (wanted === 0) {
    throw new AppError('CONFLICT', {
      message: 'Nothing of the disk is saved yet. Start the VM and flush it (POST …/vm/flush) first.',
    });
  }
  await checkQuota(tx, context.quotas, principal.org_id, { instances: 1, disk_gib: parent.disk_gib });
  const { image, cpus, memory_mib, disk_gib, auto_flush_seconds, idle_timeout_seconds } = parent;
  const { keep_last, keep_daily_days, egress_mode, egress_allow, restart } = parent;
  const { host_labels, tolerations } = parent;
  const forked_from = { instance_id: from, generation: wanted, dirty_bytes: parent.dirty_bytes };
  const id = await insertNew(tx, principal, context, {
    name,
    labels: {},
    image,
    cpus,
    memory_mib,
    disk_gib,
    auto_flush_seconds,
    idle_timeout_seconds,
    wake_on_connect: false,
    restart,
    user_data: null,
    keep_last,
    keep_daily_days,
    egress_mode,
    egress_allow,
    host_labels,
    tolerations,
    forked_from,
  });
  await shareDataKeys(tx, context.disk_keys, from, id, parent.generation);
  await copyDisk(tx, from, id, wanted);
  return announce(tx, principal, id, 'instance.forked', { forked_from });
}
