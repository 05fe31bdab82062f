import type { Log } from '../../shared/log.ts';
import { type Db, transaction } from '../db/pool.ts';
import { eachInTurn } from '../tasks/each-in-turn.ts';
import { listHostIds } from './host-store.ts';
import { recountUse } from './use-store.ts';

/** Corrects the counters of what VMs use, which a control plane of the version before does not keep. */
export async function recountHosts(db: Db, log: Log): Promise<void> {
  await eachInTurn(await listHostIds(db), async (host_id) => {
    const wrong = await transaction(db, (tx) => recountUse(tx, host_id));
    if (wrong) log.warn({ host_id }, "the use of a host's memory was counted again, and had been wrong");
  });
}
