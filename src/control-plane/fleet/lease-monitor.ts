/**
 * Decides which hosts' leases have expired (`LeaseMonitor`, pure), marks those hosts as lost, and fails their VMs. Also
 * corrects the counters of what VMs use of hosts.
 *
 * - A host counts its lease from when it sent a renewal. The monitor counts from when it saw the renewal, which is
 *   later, and adds a margin in which the host pauses its VMs.
 * - Only this process's monotonic clock is read, so a step of a clock expires nothing.
 * - A monitor that was interrupted (a start, no database, a paused process) has missed renewals, so it gives every host
 *   a whole lease again.
 */
import { present } from '../../shared/assert.ts';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { notify } from '../db/notify.ts';
import { type Db, transaction } from '../db/pool.ts';
import { noteDeleted } from '../disks/store.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import { eachInTurn } from '../tasks/run-tasks.ts';
import { endWithoutHost } from '../vms/deadline-monitor.ts';
import { failFlushes } from '../vms/flush-vm.ts';
import { observe } from '../vms/model.ts';
import { findVm, listOnHosts, markReleased } from '../vms/store.ts';
import { listHostIds, listLeases, markLost, recountUse } from './host-store.ts';

/** A longer gap between two checks counts as an interruption. */
const GAP_MS = 10_000;

export interface LeaseState {
  readonly id: HostId;
  readonly name: string;
  /** Counts the host's renewals. */
  readonly beat: number;
  readonly lease_ms: number;
  /** Marked as lost since its last renewal. */
  readonly lost: boolean;
}

/** How long after the end of its lease a host counts as expired. */
export function marginMs(lease_ms: number): number {
  return 2_000 + lease_ms / 8;
}

export class LeaseMonitor {
  readonly #renewals = new Map<HostId, { readonly beat: number; readonly seen_ms: number }>();
  #checked_ms: number | null = null;

  /** The hosts without a renewal for lease and margin. `now_ms` is of a monotonic clock. */
  expired(hosts: readonly LeaseState[], now_ms: number): LeaseState[] {
    if (this.#checked_ms !== null && now_ms - this.#checked_ms > GAP_MS) this.reset();
    this.#checked_ms = now_ms;
    const present = new Set(hosts.map(({ id }) => id));
    for (const id of this.#renewals.keys()) if (!present.has(id)) this.#renewals.delete(id);
    return hosts.filter((host) => {
      const last = this.#renewals.get(host.id);
      if (last?.beat !== host.beat) {
        this.#renewals.set(host.id, { beat: host.beat, seen_ms: now_ms });
        return false;
      }
      return now_ms - last.seen_ms >= host.lease_ms + marginMs(host.lease_ms);
    });
  }

  /** After an interruption every host gets a whole lease again. */
  reset(): void {
    this.#renewals.clear();
    this.#checked_ms = null;
  }
}

const HOST_LOST = 'The host that holds its disk is lost.';

/**
 * Marks hosts whose lease has expired as lost, and fails their VMs. By then such a host has paused its VMs, so they may
 * start elsewhere. Each VM fails in its own transaction, and a lease renewal waits for that transaction: a host that comes
 * back finds each VM either unchanged or failed.
 *
 * `clock`: monotonic, in ms. It is read once the renewals are known: earlier, a slow answer would shorten the leases.
 */
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

/** Corrects the counters of what VMs use. A wrong one would refuse starts, or overload a host. */
export async function recountHosts(db: Db, log: Log): Promise<void> {
  await eachInTurn(await listHostIds(db), async (host_id) => {
    const wrong = await transaction(db, (tx) => recountUse(tx, host_id));
    if (wrong) log.warn({ host_id }, "the use of a host's memory was counted again, and had been wrong");
  });
}
