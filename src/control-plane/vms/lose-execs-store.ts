/** Execs end with the boot that they run in. */
import { sql } from 'kysely';
import type { ExecId, InstanceId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';

/** The instance's running execs are `lost`: no boot that they ran in exists any more. */
export async function loseExecs(tx: Tx, instance_id: InstanceId): Promise<void> {
  const lost = await tx
    .updateTable('execs')
    .set({ state: 'lost', lost_with: 'boot', ended_at: sql<Date>`date_trunc('milliseconds', now())` })
    .where('instance_id', '=', instance_id)
    .where('state', '=', 'running')
    .returning('id')
    .execute();
  for (const { id } of lost) await notify(tx, 'exec', id satisfies ExecId);
}
