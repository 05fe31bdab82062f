/**
 * Ends VMs without a report of their host. A VM fails if it has been starting, restarting or suspending past its
 * deadline (`enforceDeadlines`), or if its host is gone (`endWithoutHost`). A VM that was already suspended becomes
 * `stopped` instead, because everything is saved.
 *
 * Deadlines also pass while no control plane runs, and hosts then report late. So a process enforces deadlines only
 * after it has watched for a minute (`DeadlineMonitor`).
 */
import type { Reason, VmReasonCode } from '../../protocol/types.ts';
import { notify } from '../db/notify.ts';
import { type Db, databaseTime, type Tx, transaction } from '../db/pool.ts';
import { lockInstance, SavedHead } from '../instances/store.ts';
import { eachInTurn } from '../tasks/run-tasks.ts';
import { announceVm, changeFor } from './change-for.ts';
import { failFlushes } from './flush-vm.ts';
import { observe, type VmState } from './model.ts';
import { findVm, listActive, listOverdue, loseExecs, updateVm, type VmRow } from './store.ts';

// Decides when deadlines of transient states are enforced. Pure.
//
// Deadlines are times of the database's clock, and pass also while this does not run: the control plane or its database was down,
// or the machine slept. That clock may also be set, or another server with another clock may lead. The hosts' queued reports arrive
// within seconds after that, so enforcement waits for a grace period. Without it, a VM that has long been running would fail because
// its report had not arrived yet.

/** A longer gap between two checks counts as an interruption. */
const GAP_MS = 10_000;
/** Long enough for a restarted agent, which adopts its VMs before it reports. */
export const GRACE_MS = 60_000;

export class DeadlineMonitor {
  #checked_ms: number | null = null;
  #watching_since_ms = 0;

  /** Whether to enforce deadlines now. `now_ms`: of the database's clock. */
  check(now_ms: number): boolean {
    if (this.#checked_ms === null || Math.abs(now_ms - this.#checked_ms) > GAP_MS)
      this.#watching_since_ms = now_ms;
    this.#checked_ms = now_ms;
    return now_ms - this.#watching_since_ms >= GRACE_MS;
  }

  /** The database was unreachable: the grace period starts again. */
  reset(): void {
    this.#checked_ms = null;
  }
}

// Ends VMs without a report of their host.

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
  await announceVm(tx, vm, 'stopped', stopped, actor);
  await notify(tx, 'instance', vm.instance_id);
}

/** Ends a VM as `failed`. The caller has locked the instance, and this is its newest boot. */
async function failVm(tx: Tx, vm: VmRow, { code, message }: Reason, actor = 'system'): Promise<void> {
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
  await announceVm(tx, vm, 'failed', { kind: 'failed', reason, guest_ran: true }, actor);
  await notify(tx, 'instance', vm.instance_id);
  await notify(tx, 'routes', vm.instance_id);
  await notify(tx, 'host', vm.host_id);
}

// Fails VMs whose transient state has lasted too long.

const TIMEOUTS: Partial<Record<VmState, VmReasonCode>> = {
  starting: 'starting_timeout',
  restarting: 'restarting_timeout',
  suspending: 'suspending_timeout',
};

/** {@link applyDeadlines}, unless this process has just begun to watch: the hosts' reports must arrive first. */
export async function enforceDeadlines(
  db: Db,
  monitor: DeadlineMonitor,
  clock = (now: Date) => now.getTime(),
): Promise<void> {
  let now: Date;
  try {
    now = await databaseTime(db);
  } catch (error) {
    monitor.reset();
    throw error;
  }
  if (monitor.check(clock(now))) await applyDeadlines(db);
}

/** Returns how many VMs were overdue. */
export async function applyDeadlines(db: Db): Promise<number> {
  const overdue = await listOverdue(db);
  await eachInTurn(overdue, ({ id, instance_id }) =>
    transaction(db, async (tx) => {
      await lockInstance(tx, instance_id);
      const vm = await findVm(tx, id);
      if (!vm || (await listOverdue(tx, id)).length === 0) return;
      const code = TIMEOUTS[vm.state];
      if (code) await failVm(tx, vm, { code, message: `The VM was ${vm.state} for too long.` });
    }),
  );
  return overdue.length;
}
