/**
 * Flushes a machine's disk: freezes the guest's file systems, starts QEMU's backup job, and thaws. Then the job's
 * blocks are stored as segments and committed as a generation.
 *
 *   freeze ─▶ transaction(backup) ─▶ thaw ─▶ job: dirty blocks → our NBD export → segments → store
 *          ─▶ job pending, segments durable, overlay on the host's disk ─▶ commit (compare and swap) ─▶ job-finalize
 *
 * - The overlay has all committed data durably, so neither a killed QEMU nor a power cut leaves it behind the head.
 * - A failure before the commit ends in job-cancel, which restores every dirty bit.
 * - After the commit was sent, the control plane is asked until the outcome is known, and the segments are never
 *   deleted. Only then is the job finalized or cancelled.
 * - After a freeze, thaws are sent until the guest agent confirms `thawed`: a frozen guest is as good as hung.
 */

import { randomUUID } from 'node:crypto';
import { ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { Consistency, FlushResult, SegmentRef } from '../../protocol/types.ts';
import { messageOf } from '../../shared/errors.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { traced } from '../../shared/tracing.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { guestExec } from '../guest/guest-commands.ts';
import type { HostContext } from '../host-context.ts';
import type { VmUser } from '../qemu/confinement.ts';
import { NODES } from '../qemu/qemu-command.ts';
import { QmpError, type TransactionAction, waitForJob } from '../qemu/qmp-client.ts';
import type { Machine } from '../vm/machine.ts';
import { DIRTY_BITMAP, DIRTY_GRANULARITY } from './dirty-blocks.ts';
import { type DiskState, type DiskStateContext, HeadMovedError } from './disk-state.ts';
import { FlushSink } from './flush-sink.ts';
import { NbdError } from './nbd-protocol.ts';
import { NbdServer } from './nbd-server.ts';

export interface FlushContext extends DiskStateContext, Pick<HostContext, 'pool'> {
  readonly lease: Pick<HostContext['lease'], 'require'>;
}

export interface FlushOptions {
  readonly context: FlushContext;
  readonly machine: Machine;
  readonly disk: DiskState;
  /** The VM's user, who must reach the socket. */
  readonly owner: VmUser | null;
  /** `freeze`: by the guest agent, if it answers. Else the guest is paused or off, and this is its disk's consistency. */
  readonly quiesce: 'freeze' | Consistency;
  /** Interrupts the flush until its commit is sent. */
  readonly signal: AbortSignal;
  /** Interrupts the wait for the outcome of its commit. Default: `signal`. */
  readonly outcome_signal?: AbortSignal;
  /** From {@link prepareFlush}, if the caller has called it. */
  readonly size_bytes?: number;
}

/**
 * Gets what a flush needs of the control plane before it begins. Waits while that is away. Returns the disk's size.
 * @throws FencedError, the last failure
 */
export async function prepareFlush(machine: Machine, disk: DiskState, signal: AbortSignal): Promise<number> {
  const size_bytes = await sizeOf(machine, disk);
  await disk.load();
  await disk.renewKeys(machine.record, signal);
  return size_bytes;
}

/** Makes everything written so far durable. @throws FencedError, or the failure; no write is lost then */
export function flushMachine(options: FlushOptions): Promise<FlushResult> {
  return traced('flush disk', { 'berth.instance_id': options.disk.instance_id }, async (note) => {
    const result = await flushOnce(options);
    const { dirty_bytes, uploaded_bytes, segments } = result;
    note({
      'berth.generation': options.disk.head.generation,
      'berth.dirty_bytes': dirty_bytes,
      'berth.bytes': uploaded_bytes,
      'berth.segments': segments,
    });
    return result;
  });
}

async function flushOnce(options: FlushOptions): Promise<FlushResult> {
  const started = performance.now();
  const { machine, disk } = options;
  const size_bytes = options.size_bytes ?? (await prepareFlush(machine, disk, options.signal));
  const { commit_id } = disk.head;
  // The bitmap counts from another head. Only a comparison of the whole overlay finds what this head lacks.
  if (machine.record.counts_from !== commit_id) await machine.update({ full_compare: true });
  const found = options.quiesce === 'freeze' ? await askGuest(machine) : options.quiesce;
  if (found === 'untouched') {
    await requireHead(disk, commit_id);
    return resultOf(disk, started, { consistency: 'filesystem' });
  }
  const generation = disk.head.generation + 1;
  const job_id = flushJobId(generation);
  await clearLeftovers(machine);
  const server = await NbdServer.listen({
    path: `${machine.folder.runtime}/flush.sock`,
    log: options.context.log,
    ...(options.owner ?? {}),
  });
  const sink = new FlushSink({
    store: options.context.store,
    pool: options.context.pool,
    disk_id: disk.instance_id,
    epoch: machine.record.epoch,
    generation,
    key_prefix: disk.key_prefix,
    size_bytes,
    head: disk.map,
    data_key: disk.write_key,
    signal: options.signal,
  });
  try {
    server.addExport('flush', sink);
    const { consistency, dirty } = await begin({ ...options, quiesce: found }, server.path, job_id);
    if (!dirty) {
      await sink.abort();
      await requireHead(disk, commit_id);
      return resultOf(disk, started, { consistency });
    }
    return await complete(options, sink, { generation, job_id, consistency, started });
  } catch (error) {
    await sink.abort(error).catch(() => undefined);
    // A host without credentials for the bucket is refused the objects of any generation but the next: the head may have moved.
    if (error instanceof ObjectStoreUnavailableError) await throwIfMoved(disk, commit_id);
    throw error;
  } finally {
    await server.close(1_000);
  }
}

/** QEMU's, because its disk grows after the database's. @throws Error if the database has lost a growth */
async function sizeOf(machine: Machine, disk: DiskState): Promise<number> {
  const size_bytes = await machine.disk.sizeBytes();
  if ((disk.headOrNull?.size_bytes ?? 0) < size_bytes) await disk.refresh();
  if (disk.size_bytes >= size_bytes) return size_bytes;
  const [here, known] = [size_bytes, disk.size_bytes].map((bytes) => bytes / 2 ** 30);
  throw new Error(
    `the disk has ${here} GiB, and the database knows of ${known}, because it was set back: set disk_gib to ${here}`,
  );
}

/** A result without a commit of its own must name a head that the database still has. @throws HeadMovedError */
async function requireHead(disk: DiskState, commit_id: string): Promise<void> {
  const { commit_id: now, generation } = await disk.refresh();
  if (now !== commit_id) throw new HeadMovedError(generation);
}

/** @throws HeadMovedError, FencedError, InstanceGoneError; nothing if the control plane is away */
async function throwIfMoved(disk: DiskState, commit_id: string): Promise<void> {
  await requireHead(disk, commit_id).catch((error: unknown) => {
    if (!(error instanceof ControlPlaneUnavailable)) throw error;
  });
}

/** Of a flush that left the disk at its head: the commit that it made, or that was there. */
function resultOf(
  { head }: DiskState,
  started: number,
  made: { consistency: Consistency; dirty_bytes?: number; uploaded_bytes?: number; segments?: number },
): FlushResult {
  const duration_ms = Math.round(performance.now() - started);
  return { ...nothingFlushed(head.commit_id), duration_ms, ...made };
}

/** The commit has everything already. */
export function nothingFlushed(commit_id: string): FlushResult {
  const nothing = { dirty_bytes: 0, uploaded_bytes: 0, segments: 0, duration_ms: 0 };
  return { commit_id, ...nothing, consistency: 'crash' };
}

/** Phase one: the point in time. Without dirty blocks there is no job. */
async function begin(
  options: FlushOptions,
  socket_path: string,
  job_id: string,
): Promise<{ readonly consistency: Consistency; readonly dirty: boolean }> {
  const { machine, quiesce } = options;
  await addTarget(machine, socket_path);
  machine.disk.noteBegun();
  let consistency: Consistency = quiesce === 'freeze' ? 'crash' : quiesce;
  let begun = false;
  try {
    if (quiesce === 'freeze' && (await freeze(machine))) consistency = 'filesystem';
    if ((await machine.markedBytes()) === 0) return { consistency, dirty: false };
    await beginBackup(machine, job_id);
    begun = true;
  } finally {
    // Do not wait again for a guest that did not answer the freeze.
    if (quiesce === 'freeze' && consistency === 'crash') thawBeside(machine);
    else if (quiesce === 'freeze') await thaw(machine);
    if (!begun) await removeTarget(machine);
  }
  return { consistency, dirty: true };
}

const SYNC_MS = 5_000;

/**
 * `untouched`: nothing is dirty. After a sync the guest has written nothing since the thaw of the last flush.
 * `crash`: the guest does not answer; do not try to freeze it.
 */
async function askGuest(machine: Machine): Promise<'untouched' | 'freeze' | 'crash'> {
  if (isThawing(machine)) return 'crash';
  if (machine.record.full_compare || !(await machine.disk.isUntouched())) return 'freeze';
  const answers = machine.agent.ping({ timeout_ms: FREEZE_MS });
  if (!(await answers.then(() => true).catch(() => false))) return 'crash';
  try {
    const { exit_code } = await guestExec(machine.agent, { path: '/bin/sync', timeout_ms: SYNC_MS });
    return exit_code === 0 && (await machine.disk.isUntouched()) ? 'untouched' : 'freeze';
  } catch {
    return 'freeze';
  }
}

interface Begun {
  readonly generation: number;
  readonly job_id: string;
  readonly consistency: Consistency;
  readonly started: number;
}

/** Phase two: the data, the commit, and the job's end. */
async function complete(options: FlushOptions, sink: FlushSink, begun: Begun): Promise<FlushResult> {
  const { machine, disk, signal } = options;
  const { job_id, generation, consistency } = begun;
  let committed = false;
  try {
    await giveFullSpeed(machine, job_id);
    const synced = syncOverlay(machine, disk, signal);
    synced.catch(() => undefined); // awaited below; the job may fail first
    await awaitBackup(machine, job_id, signal);
    const result = await sink.finish();
    await synced;
    const segments: SegmentRef[] = result.segments.map((written) => ({ ...written }));
    if (segments.length > 0) {
      const commit_id = randomUUID();
      const flush = { job_id, generation, commit_id, segments, consistency, dirty_bytes: result.dirty_bytes };
      await machine.update({ flush });
      // The control plane refuses a commit once another host has the disk. Without a lease, do not even ask.
      options.context.lease.require();
      sink.keep();
      await disk.commit(options.context.client, machine.record, flush, signal, options.outcome_signal);
    } else await requireHead(disk, disk.head.commit_id);
    committed = true;
    await finalizeBackup(machine, job_id);
    await machine.update({ flush: null, full_compare: false, counts_from: disk.head.commit_id });
    await machine.disk.noteFlushed();
    return resultOf(disk, begun.started, {
      consistency,
      dirty_bytes: result.dirty_bytes,
      uploaded_bytes: result.uploaded_bytes,
      segments: segments.length,
    });
  } catch (error) {
    if (!committed && !machine.gone) {
      // The failure matters more than the undo, which the next flush repeats: a fenced machine must end now.
      await undoBackup(machine).catch((err: unknown) =>
        options.context.log.warn({ err }, 'the next flush undoes what a failed one has left'),
      );
    }
    throw sinkFailure(sink, error);
  }
}

/** Before a commit, all writes that QEMU has completed reach the host's disk, whether or not the guest has synced them. */
async function syncOverlay(
  { exported, record }: Machine,
  disk: DiskState,
  signal: AbortSignal,
): Promise<void> {
  try {
    await exported.syncToDisk(signal);
  } catch (cause) {
    signal.throwIfAborted();
    if (cause instanceof NbdError) await disk.noteSyncFailed(record);
    throw new Error(`the host's disk does not take the guest's writes: ${messageOf(cause)}`, {
      cause,
    });
  }
}

/** QEMU reports only that its target failed; the sink knows why. */
function sinkFailure(sink: FlushSink, error: unknown): unknown {
  return sink.failure === undefined ? error : sink.failure.cause;
}

/**
 * Finishes or undoes the flush that an earlier agent left: a committed job is finalized, any other is cancelled, and the next
 * flush has all of its blocks.
 */
export async function settleFlush(machine: Machine, disk: DiskState): Promise<void> {
  if (machine.record.frozen) await thaw(machine);
  const { flush } = machine.record;
  const jobs = await machine.qmp.execute('query-jobs', undefined);
  const job = jobs.find(isFlushJob);
  if (!job && flush === null) return;
  await disk.load();
  const ours = flush !== null && (!job || flush.job_id === job.id);
  if (ours && disk.hasCommitted(flush)) {
    if (job?.status === 'pending') await finalizeBackup(machine, job.id);
    else if (job) await clearLeftovers(machine);
    await machine.update({ flush: null, full_compare: false, counts_from: flush.commit_id });
  } else if (job) await undoBackup(machine);
  else await machine.update({ flush: null });
}

const JOB_MS = 6 * 3_600_000;
const TARGET_NODE = 'flush-target';
/** Bytes a second. A thaw beside a copy at full speed took up to 1.8 s, and beside this one 41 to 49 ms. */
const SPEED_WHILE_FROZEN = 65_536;
const JOB_PREFIX = 'flush-';

function flushJobId(generation: number): string {
  return `${JOB_PREFIX}${generation}`;
}

function isFlushJob({ id }: { readonly id: string }): boolean {
  return id.startsWith(JOB_PREFIX);
}

/** Connects QEMU to the flush's export. */
async function addTarget({ qmp }: Machine, socket_path: string): Promise<void> {
  await qmp.execute('blockdev-add', {
    driver: 'nbd',
    'node-name': TARGET_NODE,
    server: { type: 'unix', path: socket_path },
    export: 'flush',
  });
}

async function removeTarget({ qmp }: Machine): Promise<void> {
  await qmp.execute('blockdev-del', { 'node-name': TARGET_NODE }).catch(() => undefined);
}

/** Takes the point in time. The job copies slowly until {@link giveFullSpeed}. */
async function beginBackup(machine: Machine, job_id: string): Promise<void> {
  const { full_compare } = machine.record;
  if (full_compare) await removeBitmap(machine);
  await machine.qmp.execute('transaction', { actions: backupActions(job_id, full_compare) });
}

/** A job that has ended refuses a new speed. A job that stayed slow would run for hours. */
async function giveFullSpeed({ qmp }: Machine, job_id: string): Promise<void> {
  try {
    await qmp.execute('block-job-set-speed', { device: job_id, speed: 0 });
  } catch (error) {
    if (!(error instanceof QmpError)) throw error;
  }
}

/** Resolves when all data of the job is written to the target. */
async function awaitBackup({ qmp }: Machine, job_id: string, signal: AbortSignal): Promise<void> {
  const job = await waitForJob(qmp, job_id, ['pending'], { timeout_ms: JOB_MS, signal });
  if (job.status === 'pending') return;
  throw new Error(untrustedText(job.error) || `the backup job ended as ${untrustedText(job.status)}`);
}

/** After the commit: the bitmap's bits are dropped. */
async function finalizeBackup({ qmp }: Machine, job_id: string): Promise<void> {
  await qmp.execute('job-finalize', { id: job_id });
  const job = await waitForJob(qmp, job_id, ['concluded'], { timeout_ms: 60_000 });
  await qmp.execute('job-dismiss', { id: job_id });
  await qmp.execute('blockdev-del', { 'node-name': TARGET_NODE });
  if (job.error) throw new Error(`the backup job ended with: ${untrustedText(job.error)}`);
}

/** Undoes a failed flush: every dirty bit comes back, and a guest that the failed copy paused continues. */
async function undoBackup(machine: Machine): Promise<void> {
  try {
    await clearLeftovers(machine);
    if (machine.record.full_compare) await removeBitmap(machine);
    await machine.resumeIfStalled();
  } catch (error) {
    if (!machine.gone)
      throw new Error(`a failed flush could not be undone: ${messageOf(error)}`, { cause: error });
  }
}

/** Removes the jobs and the target that a failed flush, or an agent that died, has left in QEMU. */
async function clearLeftovers(machine: Machine): Promise<void> {
  const { qmp } = machine;
  for (const job of (await qmp.execute('query-jobs', undefined)).filter(isFlushJob)) {
    if (job.status !== 'concluded') {
      await qmp.execute('job-cancel', { id: job.id }).catch(() => undefined);
      await waitForJob(qmp, job.id, ['concluded'], { timeout_ms: 30_000 });
    }
    await qmp.execute('job-dismiss', { id: job.id }).catch(() => undefined);
  }
  await removeTarget(machine);
  // Also the record of a flush that was committed and has not ended: a successor would trust the bitmap that this one left.
  if (machine.record.flush) await machine.update({ flush: null });
}

/**
 * By the bitmap: all blocks written since the last flush. Without a bitmap that can be trusted (the last machine was killed):
 * all that the overlay holds, and a new bitmap begins at the same instant; the sink's hashes leave out what the head has.
 */
function backupActions(job_id: string, full_compare: boolean): TransactionAction[] {
  const common = {
    'job-id': job_id,
    device: NODES.overlay,
    target: TARGET_NODE,
    speed: SPEED_WHILE_FROZEN,
    'auto-finalize': false,
    'auto-dismiss': false,
  } as const;
  if (!full_compare) {
    return [
      {
        type: 'blockdev-backup',
        data: { ...common, sync: 'bitmap', bitmap: DIRTY_BITMAP, 'bitmap-mode': 'on-success' },
      },
    ];
  }
  return [
    {
      type: 'block-dirty-bitmap-add',
      data: { node: NODES.overlay, name: DIRTY_BITMAP, granularity: DIRTY_GRANULARITY, persistent: false },
    },
    { type: 'blockdev-backup', data: { ...common, sync: 'top' } },
  ];
}

/** A bitmap that cannot be trusted: of a flush that was not undone before its agent died. There may be none. */
async function removeBitmap({ qmp }: Machine): Promise<void> {
  const bitmap = { node: NODES.overlay, name: DIRTY_BITMAP };
  await qmp.execute('block-dirty-bitmap-remove', bitmap).catch(() => undefined);
}

/** How long a guest may take to freeze. After that it is flushed unfrozen. */
export const FREEZE_MS = 3_000;
const THAW_MS = 10_000;

/** Thaws under way, at most one per machine. */
const thawing = new WeakMap<Machine, Promise<void>>();

/** A thaw is not confirmed yet. */
function isThawing(machine: Machine): boolean {
  return thawing.has(machine);
}

/**
 * Freezes the guest's file systems, through its agent. False: the guest did not answer in time, and may be frozen or not.
 * The guest must be thawed after a call, also after false.
 */
export async function freeze(machine: Machine): Promise<boolean> {
  // A pending thaw could end a new freeze too early.
  if (isThawing(machine) || machine.agent.is_cut_off) return false;
  await machine.update({ frozen: true });
  try {
    const is_frozen = (await machine.agent.fsfreeze(FREEZE_MS)) > 0;
    if (is_frozen) await machine.disk.noteFrozen();
    return is_frozen;
  } catch {
    return false;
  }
}

/** Thaws. After the timeout the thaw continues in the background, so that a hanging agent delays neither a flush nor a stop. */
export async function thaw(machine: Machine): Promise<void> {
  const enough = new AbortController();
  await Promise.race([beginThaw(machine), pause(THAW_MS, enough.signal)]);
  enough.abort();
}

/** Thaws in the background, for a guest that did not answer the freeze. */
function thawBeside(machine: Machine): void {
  beginThaw(machine).catch(() => undefined);
}

function beginThaw(machine: Machine): Promise<void> {
  const confirmed =
    thawing.get(machine) ?? thawUntilConfirmed(machine).finally(() => thawing.delete(machine));
  thawing.set(machine, confirmed);
  return confirmed;
}

/**
 * Retries without a limit. A reset or the machine's end thaws too. A freeze may be executed after it has timed out, so a thaw
 * that found nothing frozen does not count before the agent reports `thawed`.
 */
async function thawUntilConfirmed(machine: Machine): Promise<void> {
  const { resets } = machine;
  for (let attempt = 0; machine.resets === resets && !machine.gone && !machine.broken; attempt++) {
    try {
      await machine.agent.thaw({ timeout_ms: THAW_MS });
      if ((await machine.agent.fsfreezeStatus({ timeout_ms: THAW_MS })) === 'thawed') break;
    } catch {
      await pause(backoffMs(attempt, 100, 2_000));
    }
  }
  if (machine.gone) return;
  await machine.update({ frozen: false });
  await machine.disk.noteThawed();
}
