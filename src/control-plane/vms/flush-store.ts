/** SQL of flushes that were requested: queues them, and records their progress and outcomes. */
import { sql } from 'kysely';
import type { FlushFailureCode, Reason } from '../../protocol/types.ts';
import type { FlushId, HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { FlushReceipt } from './flush-vm.ts';
import type { VmState } from './model.ts';
import { presentContext } from './store.ts';

export async function findFlush(tx: Tx, id: FlushId) {
  return tx.selectFrom('flushes').selectAll().where('id', '=', id).executeTakeFirst();
}

/** The host of the instance's VM; null: it has none. */
export async function hostOf(tx: Tx, instance_id: InstanceId): Promise<HostId | null> {
  const row = await tx
    .selectFrom('vms')
    .select('host_id')
    .where('instance_id', '=', instance_id)
    .executeTakeFirst();
  return row?.host_id ?? null;
}

/** With the host of its VM; locked until the transaction's end. */
export async function lockFlush(tx: Tx, id: FlushId) {
  return tx
    .selectFrom('flushes as f')
    .innerJoin('vms as v', 'v.id', 'f.vm_id')
    .select(['f.id', 'f.instance_id', 'f.requested_by', 'f.state', 'v.host_id'])
    .where('f.id', '=', id)
    .forUpdate('f')
    .executeTakeFirst();
}

/** The flush that new callers join. */
export async function findQueuedFlush(tx: Tx, instance_id: InstanceId): Promise<FlushId | undefined> {
  const row = await tx
    .selectFrom('flushes')
    .select('id')
    .where('instance_id', '=', instance_id)
    .where('state', '=', 'queued')
    .executeTakeFirst();
  return row?.id;
}

export async function insertFlush(
  tx: Tx,
  flush: {
    readonly id: FlushId;
    readonly instance_id: InstanceId;
    readonly vm_id: VmId;
    readonly requested_by: string;
  },
): Promise<void> {
  await tx
    .insertInto('flushes')
    .values({
      ...flush,
      state: 'queued',
      finished_at: null,
      receipt: null,
      error: null,
      trace_context: presentContext(),
    })
    .execute();
}

export type FlushState =
  | { readonly state: 'running' }
  | { readonly state: 'done'; readonly receipt: FlushReceipt }
  | { readonly state: 'failed'; readonly error: Reason<FlushFailureCode> };

export async function updateFlush(tx: Tx, id: FlushId, now: FlushState): Promise<void> {
  await tx
    .updateTable('flushes')
    .set({
      state: now.state,
      ...(now.state === 'done' ? { receipt: JSON.stringify(now.receipt) } : {}),
      ...(now.state === 'failed' ? { error: JSON.stringify(now.error) } : {}),
      ...(now.state === 'running' ? {} : { finished_at: sql`now()` }),
    })
    .where('id', '=', id)
    .execute();
}

/** Adds the duration of the flush that made a generation. */
export async function noteDuration(
  tx: Tx,
  instance_id: InstanceId,
  generation: number,
  duration_ms: number,
): Promise<void> {
  await tx
    .updateTable('generations')
    .set({ duration_ms })
    .where('instance_id', '=', instance_id)
    .where('generation', '=', generation)
    .execute();
}

/** Fails the instance's running flushes except `except`. Returns their ids. */
export async function failRunningFlushes(
  tx: Tx,
  instance_id: InstanceId,
  except: FlushId,
  error: Reason<FlushFailureCode>,
): Promise<FlushId[]> {
  const rows = await tx
    .updateTable('flushes')
    .set({ state: 'failed', error: JSON.stringify(error), finished_at: sql`now()` })
    .where('instance_id', '=', instance_id)
    .where('state', '=', 'running')
    .where('id', '!=', except)
    .returning('id')
    .execute();
  return rows.map(({ id }) => id);
}

/** Ends the VM's queued and running flushes. Returns their ids. */
export async function endFlushesOf(
  tx: Tx,
  vm_id: VmId,
  end: { readonly receipt: FlushReceipt } | { readonly error: Reason<FlushFailureCode> },
): Promise<FlushId[]> {
  const outcome =
    'receipt' in end
      ? { state: 'done' as const, receipt: JSON.stringify(end.receipt) }
      : { state: 'failed' as const, error: JSON.stringify(end.error) };
  const rows = await tx
    .updateTable('flushes')
    .set({ ...outcome, finished_at: sql`now()` })
    .where('vm_id', '=', vm_id)
    .where('state', 'in', ['queued', 'running'])
    .returning('id')
    .execute();
  return rows.map(({ id }) => id);
}

export interface FinalFlush {
  readonly state: VmState;
  readonly reason_code: string | null;
  readonly reason_message: string | null;
}

/** A VM's state and its reason. */
export async function findFinalFlush(tx: Tx, vm_id: VmId): Promise<FinalFlush | undefined> {
  return tx
    .selectFrom('vms')
    .select(['state', 'reason_code', 'reason_message'])
    .where('id', '=', vm_id)
    .executeTakeFirst();
}

/** Deletes flushes that ended more than a day ago. For the sweep. */
export async function deleteEndedFlushes(tx: Tx): Promise<void> {
  await tx.deleteFrom('flushes').where('finished_at', '<', sql<Date>`now() - interval '1 day'`).execute();
}
