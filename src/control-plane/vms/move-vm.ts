/**
 * Moves VMs from draining hosts to others. The column `move` of the VM's row says that a move is under way.
 *
 *   running ── begin ─▶ suspending ─▶ suspended ─┐
 *      ▲          └───▶ stopping ──▶ stopped ───┴─ finish ─▶ a new boot, which resumes or boots
 *      └── the memory could not be saved: the next try stops it
 *
 * If the resume fails, the VM is `suspended` again and keeps `move`, so it is started again. Any other change of the
 * VM, such as a user's stop, clears `move` (`updateVm`). Begin and finish take the instance's lock and check again. So
 * any number of control planes may run them, and each may die in between.
 */
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { inWork } from '../../shared/tracing.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { previewPlacement } from '../fleet/place-vm.ts';
import { currentImage } from '../images/store.ts';
import { getInstance, type InstanceRow, lockInstance } from '../instances/store.ts';
import { eachInTurn } from '../tasks/run-tasks.ts';
import {
  countLeaving,
  findDraining,
  listDraining,
  listLeft,
  listMovable,
  noteProblem,
} from './move-store.ts';
import { notifyChange } from './request-change.ts';
import { insertBoot, wantedBy } from './start-vm.ts';
import { newestVm, updateVm, type VmRow } from './store.ts';

/** How long after a problem the next try is. */
const AGAIN_S = 15;

export type Begun = 'suspend' | 'stop' | 'waits' | 'not_wanted';

/** Suspends the VM of a draining host if another one has room for it; stops it where its memory cannot go along. */
async function beginMove(tx: Tx, id: InstanceId): Promise<Begun> {
  await lockInstance(tx, id);
  const row = await getInstance(tx, id);
  const vm = await newestVm(tx, id);
  if (!row || !vm || row.deleting || vm.state !== 'running') return 'not_wanted';
  const draining = await findDraining(tx, vm.host_id);
  if (!draining) return 'not_wanted';
  const waits = async (problem: string) => {
    await noteProblem(tx, vm.id, problem, AGAIN_S);
    return 'waits' as const;
  };
  // Its disk could not be saved either: it runs on.
  if (draining.store_problem !== null) return waits(`object storage: ${draining.store_problem}`);
  const to = await destinationOf(tx, row);
  if ('reason' in to) return waits(to.reason);
  const move = to.same_machine && !failedToSuspend(vm) ? 'suspend' : 'stop';
  const reason = {
    code: 'host_drain',
    message:
      move === 'suspend'
        ? 'Its host is being drained: the VM is suspended, and resumes on another host.'
        : 'Its host is being drained, and its memory cannot go along: the VM stops, and starts on another host.',
    actor: 'system',
  } as const;
  await updateVm(
    tx,
    vm,
    move === 'suspend'
      ? { state: 'suspending', desired: 'suspended', reason, move }
      : { state: 'stopping', desired: 'stopped', reason, move },
  );
  await notifyChange(tx, id, vm.host_id);
  return move;
}

function failedToSuspend({ reason_code, move_problem }: VmRow): boolean {
  return reason_code === 'suspend_failed' && move_problem !== null;
}

async function destinationOf(tx: Tx, row: InstanceRow) {
  const image = (await currentImage(tx, row.image)) ? null : row.image;
  const wanted = await wantedBy(tx, row);
  return previewPlacement(tx, { ...wanted, image, memory_of: row.host_id, may_stay: false });
}

/**
 * Starts a VM that has left its host on another one. If every other host has filled up meanwhile, it returns to its own: a
 * running VM there is better than none. False: it is not wanted any more, or waits.
 */
async function finishMove(tx: Tx, id: InstanceId): Promise<boolean> {
  await lockInstance(tx, id);
  const row = await getInstance(tx, id);
  if (!row || row.deleting || row.move === null) return false;
  if (row.state !== 'suspended' && row.state !== 'stopped') return false;
  const message = 'Its host is being drained: the VM continues on another.';
  try {
    const reason = { code: 'host_drain', message, actor: 'system' } as const;
    const host_id = await insertBoot(tx, null, row, reason, true);
    await notifyChange(tx, id, host_id);
    return true;
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'UNAVAILABLE') throw error;
    const vm = present(await newestVm(tx, id), 'vm that moves');
    await noteProblem(tx, vm.id, error.message, 2);
    await notify(tx, 'instance', id);
    return false;
  }
}

/** So many VMs of a host move at once: each sends its memory to the object store. */
export const MOVES_A_HOST = 4;

/** Moves the running VMs of draining hosts to others. */
export async function moveVms(db: Db, log: Log): Promise<void> {
  await eachInTurn(await listLeft(db), ({ instance_id, trace_context }) => {
    const attributes = { 'berth.instance_id': instance_id };
    // The same trace as its beginning.
    return inWork({ name: 'task finish move', attributes, context: trace_context }, async () => {
      const started = await transaction(db, (tx) => finishMove(tx, instance_id));
      if (started) log.info({ instance_id }, 'a VM of a draining host continues on another');
    });
  });
  for (const host_id of await listDraining(db)) {
    const free = MOVES_A_HOST - (await countLeaving(db, host_id));
    if (free <= 0) continue;
    await eachInTurn(await listMovable(db, host_id, free), (instance_id) => {
      const attributes = { 'berth.instance_id': instance_id, 'berth.host_id': host_id };
      return inWork({ name: 'task begin move', attributes, context: null }, async () => {
        const begun = await transaction(db, (tx) => beginMove(tx, instance_id));
        if (begun !== 'not_wanted') log.info({ instance_id, host_id, begun }, 'a VM is to leave its host');
      });
    });
  }
}
