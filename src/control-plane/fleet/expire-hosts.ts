/**
 * Marks hosts whose lease has expired as lost, and fails their VMs. By then such a host has paused its VMs, so they may
 * start elsewhere. Each VM fails in its own transaction, and a lease renewal waits for that transaction: a host that comes
 * back finds each VM either unchanged or failed.
 */

import { present } from '../../shared/assert.ts';
import type { InstanceId, VmId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import { noteDeleted } from '../disks/store.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import { endWithoutHost } from '../vms/fail-vm.ts';
import { failFlushes } from '../vms/flushes.ts';
import { observe } from '../vms/model.ts';
import { findVm, listOnHosts, markReleased } from '../vms/store.ts';
import type { LeaseMonitor, LeaseState } from './lease-monitor.ts';
import { listLeases, markLost } from './lease-store.ts';

const HOST_LOST = 'The host that holds its disk is lost.';

/** `clock`: monotonic, in ms. It is read once the renewals are known: earlier, a slow answer would shorten the leases. */
export async function expireHosts(
  db: Db,
  monitor: LeaseMonitor,
  log: Log,
  clock = () => performance.now(),
): Promise<void> {
  let leases: LeaseState[];
  try {
    leases = await listLeases(db);
  } catch (error) {
    monitor.reset();
    throw error;
  }
  const expired = monitor.expired(leases, clock());
  if (expired.length === 0) return;
  for (const host of expired) {
    if (host.lost || (await transaction(db, (tx) => markLost(tx, host.id, host.beat))) !== 'lost') continue;
    log.error({ host_id: host.id, name: host.name }, 'a host is lost');
  }
  const by_id = new Map(expired.map((host) => [host.id, host]));
  await eachInTurn(await listOnHosts(db, [...by_id.keys()]), ({ id, instance_id, host_id }) =>
    failOne(db, present(by_id.get(host_id), 'its host'), id, instance_id),
  );
}

async function failOne(db: Db, host: LeaseState, id: VmId, instance_id: InstanceId): Promise<void> {
  await transaction(db, async (tx) => {
    await lockInstance(tx, instance_id);
    if ((await markLost(tx, host.id, host.beat)) === 'renewed') return;
    const [vm, instance] = [await findVm(tx, id), await getInstance(tx, instance_id)];
    if (vm?.host_id !== host.id || !instance) return;
    if (instance.deleting) {
      // A host that comes back removes what it still has.
      await noteDeleted(tx, instance_id);
      await markReleased(tx, instance_id, host.id);
      await failFlushes(tx, id, 'The instance was deleted.');
      await notify(tx, 'deleting');
      return;
    }
    // A report may have arrived meanwhile: a stopped or suspended VM is durable, and keeps its state.
    const at_rest = vm.state === 'failed' || observe(vm.state, 'failed') === null;
    if (instance.vm_id !== id || at_rest) return failFlushes(tx, id, HOST_LOST);
    const from = instance.generation === 0 ? 'the image' : `generation ${instance.generation}`;
    await endWithoutHost(tx, vm, {
      code: 'host_lost',
      message: `Its host ${host.name} is lost. A start on another host continues from ${from}: later writes were on that host alone.`,
    });
  });
}
