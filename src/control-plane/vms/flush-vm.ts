/**
 * Requests flushes, waits for their receipts, and records what hosts report of them. An instance has at most one queued
 * and one running flush. A caller joins the queued flush, never the running one. So the receipt covers everything that
 * was written before the call.
 */
import type {
  FlushFailure,
  FlushFailureCode,
  FlushReport,
  FlushResult,
  Reason,
} from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { type FlushId, type HostId, type InstanceId, newId, type VmId } from '../../shared/ids.ts';
import { type NotifyHub, notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { type HostCalls, standsStill } from '../fleet/host-calls.ts';
import { isHostLost } from '../fleet/host-store.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { lockInstanceOf } from '../instances/change-instance.ts';
import { instanceView } from '../instances/model.ts';
import { getInstance, type InstanceRow, lockInstance, SavedHead } from '../instances/store.ts';
import {
  endFlushesOf,
  type FlushState,
  failRunningFlushes,
  findFinalFlush,
  findFlush,
  findQueuedFlush,
  hostOf,
  insertFlush,
  lockFlush,
  noteDuration,
  updateFlush,
} from './flush-store.ts';
import { ruleOrThrow } from './request-change.ts';
import { findVm, markUsed, newestVm } from './store.ts';

// Receipts of flushes. A receipt says that everything written before the flush is durable. So it is made of a commit that the
// database has, and in no other way: only {@link receiptOf} makes one, and only `SavedHead.read` makes what it needs.

declare const MADE_OF_A_COMMIT: unique symbol;

type Work = Omit<FlushResult, 'commit_id'>;

export interface FlushReceipt extends Work {
  readonly generation: number;
  readonly durable_at: string | null;
  readonly [MADE_OF_A_COMMIT]: true;
}

/** The writes were durable already. */
const NO_WORK: Work = {
  dirty_bytes: 0,
  uploaded_bytes: 0,
  segments: 0,
  duration_ms: 0,
  consistency: 'offline',
};

/** `work`: what the flush did, if it had to do anything. */
function receiptOf({ generation, durable_at }: SavedHead, work: Partial<Work> = {}): FlushReceipt {
  const { dirty_bytes, uploaded_bytes, segments, duration_ms, consistency } = { ...NO_WORK, ...work };
  return {
    generation,
    durable_at: durable_at === null ? null : rfc3339(durable_at),
    ...{ dirty_bytes, uploaded_bytes, segments, duration_ms, consistency },
  } as FlushReceipt;
}

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
  if (state === 'failed' && row.host_id !== null && (await isHostLost(tx, row.host_id))) {
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

/** Records a host's report of a requested flush. */
export async function recordFlush(
  db: Db,
  host_id: HostId,
  report: FlushReport,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const found = await findFlush(tx, report.flush_id);
    // Lock order: the instance before its flushes.
    if (found) await lockInstance(tx, found.instance_id);
    const row = await lockFlush(tx, report.flush_id);
    if (!row || row.host_id !== host_id || row.state === 'done' || row.state === 'failed') return 'fenced';
    // A host runs one flush of a disk at a time: others marked as running were interrupted.
    if (report.state === 'running') await failInterrupted(tx, row.instance_id, report.flush_id);
    const now = report.state === 'done' ? await judgeResult(tx, row.instance_id, report.result) : report;
    await updateFlush(tx, report.flush_id, now);
    if (now.state === 'done' && now.receipt.segments > 0)
      await noteDuration(tx, row.instance_id, now.receipt.generation, now.receipt.duration_ms);
    if (now.state === 'failed')
      await announceFlushFailure(tx, row.instance_id, 'asked', now.error, row.requested_by);
    await notify(tx, 'flush', report.flush_id);
    return 'accepted';
  });
}

/** A host may be confused, and the database may have lost the commit since: without it the writes are not saved. */
async function judgeResult(tx: Tx, instance_id: InstanceId, result: FlushResult): Promise<FlushState> {
  const head = await SavedHead.read(tx, instance_id);
  if (head.commit_id === result.commit_id) return { state: 'done', receipt: receiptOf(head, result) };
  const message = `Its host named a commit that is not the disk's present generation ${head.generation}.`;
  return { state: 'failed', error: { code: 'flush_failed', message } };
}

/** Records the first failure of automatic flushes since one succeeded. */
export async function recordFlushFailure(
  db: Db,
  host_id: HostId,
  { vm_id, epoch, error }: FlushFailure,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const vm = await findVm(tx, vm_id);
    if (vm?.host_id !== host_id || vm.epoch !== epoch) return 'fenced';
    await lockInstance(tx, vm.instance_id);
    if ((await newestVm(tx, vm.instance_id))?.id !== vm_id) return 'fenced';
    await announceFlushFailure(tx, vm.instance_id, 'automatic', error, host_id);
    return 'accepted';
  });
}

/** Appends `disk.flush_failed`. The caller has locked the instance. @param actor who asked for the flush, or the host */
export async function announceFlushFailure(
  tx: Tx,
  instance_id: InstanceId,
  cause: 'asked' | 'automatic' | 'final',
  { code, message }: Reason<FlushFailureCode>,
  actor: string,
): Promise<void> {
  const row = await getInstance(tx, instance_id);
  // A deletion gives up the data on purpose.
  if (!row || row.deleting) return;
  await append(tx, {
    org_id: row.org_id,
    instance_id,
    type: 'disk.flush_failed',
    data: { instance: instanceView(row), error: { code, message }, cause },
    actor,
  });
}

async function failInterrupted(tx: Tx, instance_id: InstanceId, id: FlushId): Promise<void> {
  const error = { code: 'interrupted', message: 'The host was interrupted.' } as const;
  for (const other of await failRunningFlushes(tx, instance_id, id, error)) await notify(tx, 'flush', other);
}

/** Fails the flushes of a VM that no longer runs. */
export async function failFlushes(tx: Tx, vm_id: VmId, message: string): Promise<void> {
  const error = { code: 'vm_gone', message } as const;
  for (const id of await endFlushesOf(tx, vm_id, { error })) await notify(tx, 'flush', id);
}

/** Completes flushes that had not begun when the VM was stopped or suspended: everything is durable, as their callers wanted. */
export async function answerFlushes(tx: Tx, vm_id: VmId, head: SavedHead): Promise<void> {
  const receipt = receiptOf(head);
  for (const id of await endFlushesOf(tx, vm_id, { receipt })) await notify(tx, 'flush', id);
}
