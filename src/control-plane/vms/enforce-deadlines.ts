/** Fails VMs whose transient state has lasted too long. */
import type { VmReasonCode } from '../../protocol/reasons.ts';
import { type Db, databaseTime, transaction } from '../db/pool.ts';
import { lockInstance } from '../instances/store.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import type { DeadlineMonitor } from './deadline-monitor.ts';
import { failVm } from './fail-vm.ts';
import type { VmState } from './model.ts';
import { findVm, listOverdue } from './store.ts';

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
