/** Ends VMs without a report of their host. */
import type { Reason } from '../../protocol/types.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { SavedHead } from '../instances/saved-head-store.ts';
import { lockInstance } from '../instances/store.ts';
import { announce } from './announce.ts';
import { changeFor } from './change-for.ts';
import { failFlushes } from './flushes.ts';
import { loseExecs } from './lose-execs-store.ts';
import { observe } from './model.ts';
import { findVm, listActive, updateVm, type VmRow } from './store.ts';

/** Fails every active VM after a restore of the database: their hosts are gone, with all unsaved writes. Returns how many. */
export async function failLost(db: Db, message: string, actor: string): Promise<number> {
  const lost = await listActive(db);
  for (const { id, instance_id } of lost) {
    await transaction(db, async (tx) => {
      await lockInstance(tx, instance_id);
      const vm = await findVm(tx, id);
      if (vm && observe(vm.state, 'failed'))
        await endWithoutHost(tx, vm, { code: 'host_lost', message }, actor);
    });
  }
  return lost.length;
}

/**
 * Ends a VM whose host is gone: as `failed`, or as `stopped` if it was suspended before its stop was requested, because
 * then everything is durable. The caller has locked the instance, and this is its newest boot.
 */
export async function endWithoutHost(tx: Tx, vm: VmRow, reason: Reason, actor = 'system'): Promise<void> {
  if (vm.suspended_at === null) return failVm(tx, vm, reason, actor);
  const { commit_id } = await SavedHead.read(tx, vm.instance_id);
  const stopped = { kind: 'stopped', commit_id } as const;
  await updateVm(tx, vm, changeFor(vm, 'stopped', stopped, vm.host_id));
  await loseExecs(tx, vm.instance_id);
  await announce(tx, vm, 'stopped', stopped, actor);
  await notify(tx, 'instance', vm.instance_id);
}

/** Ends a VM as `failed`. The caller has locked the instance, and this is its newest boot. */
export async function failVm(tx: Tx, vm: VmRow, { code, message }: Reason, actor = 'system'): Promise<void> {
  const reason = { code, message, actor };
  await updateVm(tx, vm, {
    state: 'failed',
    reason,
    ssh_address: null,
    stopped_at: 'now',
    // Its host does not say: it may have.
    guest_ran: true,
    move: vm.move,
  });
  await failFlushes(tx, vm.id, message);
  await loseExecs(tx, vm.instance_id);
  await announce(tx, vm, 'failed', { kind: 'failed', reason, guest_ran: true }, actor);
  await notify(tx, 'instance', vm.instance_id);
  await notify(tx, 'routes', vm.instance_id);
  await notify(tx, 'host', vm.host_id);
}
