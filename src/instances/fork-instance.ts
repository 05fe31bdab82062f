import type { Principal } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import { shareDataKeys } from '../disks/data-keys.ts';
import { copyDisk, findRetained } from '../disks/generation-store.ts';
import { AppError } from '../lib/errors.ts';
import type { InstanceId } from '../lib/ids.ts';
import { checkQuota } from '../orgs/quotas.ts';
import { announce, type CreationContext, insertNew } from './create-instance.ts';
import { lockInstanceOf, refuseDeleting } from './lock-instance.ts';
import { noSuchGeneration } from './restore-instance.ts';
import type { InstanceRow } from './store.ts';

export interface ForkRequest {
  readonly name: string;
  /** Null: the last durable one. */
  readonly generation: number | null;
}

/**
 * Makes an instance whose disk begins as a generation of another's, whatever that one's VM does. Nothing is copied: it holds
 * the same objects and has the keys to them, so that it outlives the other; its parent writes with a new one from here on. It has
 * a data key, an SSH port and, from its first boot on, a host key of its own; its maker's keys let in, and nothing wakes it.
 * @throws AppError NOT_FOUND, CONFLICT, QUOTA_EXCEEDED, UNAVAILABLE
 */
export async function forkInstance(
  tx: Tx,
  principal: Principal,
  context: CreationContext,
  from: InstanceId,
  { name, generation }: ForkRequest,
): Promise<InstanceRow> {
  // The instance before its organisation, as a start takes them.
  const parent = await lockInstanceOf(tx, principal, from);
  const wanted = generation ?? parent.generation;
  if (generation !== null && !(await findRetained(tx, from, generation))) throw noSuchGeneration(generation);
  refuseDeleting(parent);
  if (wanted === 0) {
    throw new AppError('CONFLICT', {
      message: 'The disk has no durable generation yet. Start the VM and flush it (POST …/vm/flush) first.',
    });
  }
  await checkQuota(tx, context.quotas, principal.org_id, { instances: 1, disk_gib: parent.disk_gib });
  const { image, cpus, memory_mib, disk_gib, auto_flush_seconds, idle_timeout_seconds } = parent;
  const { keep_last, keep_daily_days } = parent;
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
    user_data: null,
    keep_last,
    keep_daily_days,
  });
  await shareDataKeys(tx, context.disk_keys, from, id, parent.generation);
  await copyDisk(tx, from, id, wanted);
  return announce(tx, principal, id, 'instance.forked', {
    forked_from: { instance_id: from, generation: wanted },
  });
}
