/**
 * Requested flushes. An instance has at most one queued and one running flush. A caller joins the queued one, never the
 * running one, so its receipt covers everything written before the call.
 */
import type { FlushFailureCode } from '../../protocol/reasons.ts';
import type { Reason } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { type FlushId, type InstanceId, newId, type VmId } from '../../shared/ids.ts';
import { type NotifyHub, notify } from '../db/notify.ts';
import type { Db, Tx } from '../db/pool.ts';
import { type HostCalls, standsStill } from '../fleet/host-calls.ts';
import { isLost } from '../fleet/lease-store.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { lockInstanceOf } from '../instances/lock-instance.ts';
import { SavedHead } from '../instances/saved-head-store.ts';
import type { InstanceRow } from '../instances/store.ts';
import { type FlushReceipt, receiptOf } from './flush-receipt.ts';
import { findFinalFlush, findFlush, findQueuedFlush, hostOf, insertFlush } from './flush-store.ts';
import { ruleOrThrow } from './request-change.ts';
import { markUsed } from './store.ts';

/** How long a caller waits at most. The flush continues after that. */
const FLUSH_WAIT_MS = 300_000;

/** What a caller waits for. It is stored with the Idempotency-Key, so that a replay waits for the same flush. */
export type BegunFlush =
  | { readonly kind: 'nothing_to_do'; readonly receipt: FlushReceipt }
  | { readonly kind: 'join_final'; readonly vm_id: VmId }
  | { readonly kind: 'queued'; readonly flush_id: FlushId };

/**
 * Requests a flush of everything written so far. `generation` is the newest one until then; that of the flush is known at its end.
 * @throws AppError CONFLICT
 */
export async function beginFlush(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
): Promise<{ readonly begun: BegunFlush; readonly generation: number }> {
  const row = await lockInstanceOf(tx, principal, id);
  const rule = ruleOrThrow(row, 'flush');
  await markUsed(tx, id);
  return { begun: await begin(tx, principal, row, rule), generation: row.generation };
}

async function begin(
  tx: Tx,
  principal: Principal,
  row: InstanceRow,
  rule: ReturnType<typeof ruleOrThrow>,
): Promise<BegunFlush> {
  const state = row.state ?? 'stopped';
  if (state === 'stopped' || state === 'suspended')
    return { kind: 'nothing_to_do', receipt: receiptOf(await SavedHead.read(tx, row.id)) };
  if (state === 'failed' && row.host_id !== null && (await isLost(tx, row.host_id))) {
    throw new AppError('CONFLICT', {
      message:
        'The VM has failed, and the host that holds its disk is lost. Start the VM: it continues from the last saved generation.',
    });
  }
  if (rule === 'join') return { kind: 'join_final', vm_id: present(row.vm_id as VmId | null, 'vm id') };
  return { kind: 'queued', flush_id: await queueFlush(tx, row, actorOf(principal)) };
}

/** False when it has failed: a replay then requests a new flush. */
export async function stillHolds(tx: Tx, begun: BegunFlush): Promise<boolean> {
  switch (begun.kind) {
    case 'nothing_to_do':
      return true;
    case 'join_final':
      return (await findFinalFlush(tx, begun.vm_id))?.state !== 'failed';
    case 'queued':
      return (await findFlush(tx, begun.flush_id))?.state !== 'failed';
  }
}

interface FlushContext {
  readonly db: Db;
  readonly hub: NotifyHub;
  readonly host_calls: Pick<HostCalls, 'watch'>;
}

/** Waits for the receipt, while the host gives signs of life. @throws AppError CONFLICT, UNAVAILABLE */
export async function awaitReceipt(
  { db, hub, host_calls }: FlushContext,
  id: InstanceId,
  begun: BegunFlush,
  signal: AbortSignal,
): Promise<FlushReceipt> {
  if (begun.kind === 'nothing_to_do') return begun.receipt;
  const host_id = await hostOf(db, id);
  const silent = new AbortController();
  const unwatch = host_id === null ? () => undefined : host_calls.watch(host_id, () => silent.abort());
  const over = AbortSignal.any([signal, silent.signal]);
  try {
    return begun.kind === 'join_final'
      ? await joinFinalFlush(db, hub, id, begun.vm_id, over)
      : await awaitFlush(db, hub, begun.flush_id, over);
  } catch (error) {
    if (silent.signal.aborted)
      throw standsStill('The flush goes on when it is back; repeat the request then to get its receipt.');
    throw error;
  } finally {
    unwatch();
  }
}

async function queueFlush(tx: Tx, row: InstanceRow, requested_by: string): Promise<FlushId> {
  const queued = await findQueuedFlush(tx, row.id);
  if (queued) return queued;
  const id = newId('flush');
  const vm_id = present(row.vm_id as VmId | null, 'vm id');
  await insertFlush(tx, { id, instance_id: row.id, vm_id, requested_by });
  await notify(tx, 'host', present(row.host_id, 'host of a VM'));
  return id;
}

async function awaitFlush(db: Db, hub: NotifyHub, id: FlushId, signal: AbortSignal): Promise<FlushReceipt> {
  const done = await hub.waitFor(
    'flush',
    id,
    FLUSH_WAIT_MS,
    async () => {
      const row = await hub.shared(id, () => findFlush(db, id));
      if (!row) throw new AppError('NOT_FOUND');
      return row.state === 'done' || row.state === 'failed' ? row : undefined;
    },
    signal,
  );
  if (!done) throw notEnded();
  if (done.state === 'done') return done.receipt as FlushReceipt;
  const error = done.error as Reason<FlushFailureCode>;
  if (error.code === 'vm_gone')
    throw new AppError('CONFLICT', { message: `The flush failed: ${error.message}` });
  throw new AppError('UNAVAILABLE', {
    message: `The flush failed: ${error.message} Nothing is lost: the next flush includes what this one did not save.`,
    retry_after_seconds: 5,
  });
}

async function joinFinalFlush(
  db: Db,
  hub: NotifyHub,
  id: InstanceId,
  vm_id: VmId,
  signal: AbortSignal,
): Promise<FlushReceipt> {
  const started = Date.now();
  const done = await hub.waitFor(
    'instance',
    id,
    FLUSH_WAIT_MS,
    async () => {
      const row = await hub.shared(vm_id, () => findFinalFlush(db, vm_id));
      return row === undefined || row.state === 'stopped' || row.state === 'failed'
        ? (row ?? null)
        : undefined;
    },
    signal,
  );
  if (done === undefined) throw notEnded();
  if (done === null) throw new AppError('NOT_FOUND');
  if (done.state === 'failed')
    throw new AppError('CONFLICT', { message: 'The VM failed while it was stopping.' });
  if (done.reason_code === 'recovered')
    throw new AppError('CONFLICT', { message: `The flush failed: ${done.reason_message}` });
  const head = await SavedHead.find(db, id);
  if (!head) throw new AppError('NOT_FOUND');
  return receiptOf(head, { duration_ms: Date.now() - started });
}

function notEnded(): AppError {
  return new AppError('UNAVAILABLE', {
    message: 'The flush is still running. Repeat the request to wait for its receipt.',
    retry_after_seconds: 5,
  });
}
