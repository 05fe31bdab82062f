import type { Log } from '../../shared/log.ts';
import { inWork } from '../../shared/tracing.ts';
import { type Db, transaction } from '../db/pool.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import { countLeaving, listDraining, listLeft, listMovable } from './move-store.ts';
import { beginMove, finishMove } from './move-vm.ts';

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
