import { sql } from 'kysely';
import type { FlushReport } from '../agent-api/types.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { FlushId, HostId, InstanceId, VmId } from '../lib/ids.ts';

/** What the host says of a queued flush. */
export async function recordFlush(
  db: Db,
  host_id: HostId,
  report: FlushReport,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const row = await tx
      .selectFrom('flushes as f')
      .innerJoin('vms as v', 'v.id', 'f.vm_id')
      .select(['f.id', 'f.instance_id', 'f.state', 'v.host_id'])
      .where('f.id', '=', report.flush_id)
      .forUpdate('f')
      .executeTakeFirst();
    if (!row || row.host_id !== host_id || row.state === 'done' || row.state === 'failed') return 'fenced';
    // A host flushes a disk once at a time: another one of it that still runs was broken off.
    if (report.state === 'running') await breakOffOthers(tx, row.instance_id, report.flush_id);
    await tx
      .updateTable('flushes')
      .set({
        state: report.state,
        ...(report.state === 'done' ? { receipt: JSON.stringify(report.receipt) } : {}),
        ...(report.state === 'failed' ? { error: JSON.stringify(report.error) } : {}),
        ...(report.state === 'running' ? {} : { finished_at: sql`now()` }),
      })
      .where('id', '=', report.flush_id)
      .execute();
    await notify(tx, 'flush', report.flush_id);
    return 'accepted';
  });
}

async function breakOffOthers(tx: Tx, instance_id: InstanceId, id: FlushId): Promise<void> {
  const error = { code: 'interrupted', message: 'The host was interrupted.' };
  const rows = await tx
    .updateTable('flushes')
    .set({ state: 'failed', error: JSON.stringify(error), finished_at: sql`now()` })
    .where('instance_id', '=', instance_id)
    .where('state', '=', 'running')
    .where('id', '!=', id)
    .returning('id')
    .execute();
  for (const other of rows) await notify(tx, 'flush', other.id);
}

/** Ends the flushes of a VM that is gone: nobody will serve them. */
export async function failFlushes(tx: Tx, vm_id: VmId, message: string): Promise<void> {
  const rows = await tx
    .updateTable('flushes')
    .set({ state: 'failed', error: JSON.stringify({ code: 'vm_gone', message }), finished_at: sql`now()` })
    .where('vm_id', '=', vm_id)
    .where('state', 'in', ['queued', 'running'])
    .returning('id')
    .execute();
  for (const { id } of rows) await notify(tx, 'flush', id);
}
