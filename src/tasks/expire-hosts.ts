/**
 * Marks hosts whose lease has expired as lost, and fails their VMs. By then such a host has paused its VMs, so they may
 * start elsewhere. Each VM fails in its own transaction, and a lease renewal waits for that transaction: a host that comes
 * back finds each VM either unchanged or failed.
 */
import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import type { LeaseMonitor, LeaseState } from '../hosts/lease-monitor.ts';
import { listLeases, markLost } from '../hosts/lease-store.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import type { InstanceId, VmId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { endWithoutHost } from '../vms/fail-vm.ts';
import { failFlushes } from '../vms/flushes.ts';
import { observe } from '../vms/model.ts';
import { findVm, listOnHost, markReleased } from '../vms/store.ts';

const HOST_LOST = 'The host that holds its disk is lost.';

export async function expireHosts(
  db: Db,
  monitor: LeaseMonitor,
  log: Log,
  now_ms = performance.now(),
): Promise<void> {
  let leases: LeaseState[];
  try {
    leases = await listLeases(db);
  } catch (error) {
    monitor.reset();
    throw error;
  }
  for (const host of monitor.expired(leases, now_ms)) await expireHost(db, host, log);
}

async function expireHost(db: Db, host: LeaseState, log: Log): Promise<void> {
  const outcome = await transaction(db, (tx) => markLost(tx, host.id, host.beat));
  if (outcome === 'renewed') return;
  if (outcome === 'lost') log.error({ host_id: host.id, name: host.name }, 'a host is lost');
  for (const { id, instance_id } of await listOnHost(db, host.id)) {
    await failOne(db, host, id, instance_id);
  }
}

async function failOne(db: Db, host: LeaseState, id: VmId, instance_id: InstanceId): Promise<void> {
  await transaction(db, async (tx) => {
    await lockInstance(tx, instance_id);
    if ((await markLost(tx, host.id, host.beat)) === 'renewed') return;
    const [vm, instance] = [await findVm(tx, id), await getInstance(tx, instance_id)];
    if (vm?.host_id !== host.id || !instance) return;
    if (instance.deleting) {
      // A host that comes back removes what it still has.
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
