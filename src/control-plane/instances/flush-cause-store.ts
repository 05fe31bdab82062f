import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** Who asked for the flush that runs now; undefined: none that was asked for runs. */
export async function findFlushRequester(tx: Tx, instance_id: InstanceId): Promise<string | undefined> {
  const running = await tx
    .selectFrom('flushes')
    .select('requested_by')
    .where('instance_id', '=', instance_id)
    .where('state', '=', 'running')
    .executeTakeFirst();
  return running?.requested_by;
}
