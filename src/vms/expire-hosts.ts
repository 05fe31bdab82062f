/**
 * What becomes of the VMs of hosts that are silent past their lease: by then the host has paused them, and they may run
 * elsewhere. Each is given up in a transaction of its own that a renewal of its host's lease waits for, so that a host
 * which is back finds each of its VMs either as it left it, or over.
 */

import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import type { LeaseMonitor, LeaseState } from '../hosts/lease-monitor.ts';
import { listLeases, markLost } from '../hosts/lease-store.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import type { InstanceId, VmId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { endWithoutHost } from './apply-report.ts';
import { failFlushes } from './flushes.ts';
import { observe } from './model.ts';
import { findVm, listOnHost, markReleased } from './store.ts';

const NOBODYS = 'The host that holds its disk is lost.';

/** Gives up the VMs of every host that `watch` finds silent. */
export async function expireHosts(
  db: Db,
  watch: LeaseMonitor,
  log: Log,
  now_ms = performance.now(),
): Promise<void> {
  let leases: LeaseState[];
  try {
    leases = await listLeases(db);
  } catch (error) {
    watch.forget();
    throw error;
  }
  for (const host of watch.look(leases, now_ms)) await loseHost(db, host, log);
}

async function loseHost(db: Db, host: LeaseState, log: Log): Promise<void> {
  const outcome = await transaction(db, (tx) => markLost(tx, host.id, host.beat));
  if (outcome === 'renewed') return;
  if (outcome === 'lost') log.error({ host_id: host.id, name: host.name }, 'a host is lost');
  for (const { id, instance_id } of await listOnHost(db, host.id)) {
    await giveUp(db, host, id, instance_id);
  }
}

async function giveUp(db: Db, host: LeaseState, id: VmId, instance_id: InstanceId): Promise<void> {
  await transaction(db, async (tx) => {
    await lockInstance(tx, instance_id);
    if ((await markLost(tx, host.id, host.beat)) === 'renewed') return;
    const [vm, instance] = [await findVm(tx, id), await getInstance(tx, instance_id)];
    if (vm?.host_id !== host.id || !instance) return;
    if (instance.deleting) {
      // What is left there goes when the host is back.
      await markReleased(tx, instance_id, host.id);
      await failFlushes(tx, id, 'The instance was deleted.');
      await notify(tx, 'deleting');
      return;
    }
    // Its last report may have come since the look: what is stopped or suspended by now is durable, and stays so.
    const at_rest = vm.state === 'failed' || observe(vm.state, 'failed') === null;
    if (instance.vm_id !== id || at_rest) return failFlushes(tx, id, NOBODYS);
    const from = instance.generation === 0 ? 'the image' : `generation ${instance.generation}`;
    await endWithoutHost(tx, vm, {
      code: 'host_lost',
      message: `Its host ${host.name} is not heard of any more. A start on another host continues from ${from}: what came after it was on that host alone.`,
    });
  });
}
