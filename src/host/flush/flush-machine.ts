/**
 * One flush of a machine's disk, in two phases.
 *
 *   freeze ─▶ transaction(backup) ─▶ thaw ─▶ job: dirty blocks → our NBD export → segments → store
 *          ─▶ job pending, segments durable, overlay on the host's disk ─▶ commit (compare and swap) ─▶ job-finalize
 *
 * The overlay holds on the disk what is committed: else a killed QEMU, or a power cut, would leave it behind the head.
 * Whatever fails before the commit ends in job-cancel, and every dirty bit is back, those written meanwhile too.
 * Once the commit was sent its outcome is asked for until it is known: only then is the job finalized or cancelled. Nor are its
 * segments ever deleted from then on, also if the machine dies before its job has ended.
 */
import { randomUUID } from 'node:crypto';
import type { Consistency, FlushReceipt, SegmentRef } from '../../agent-api/types.ts';
import { messageOf } from '../../lib/errors.ts';
import { untrustedText } from '../../lib/untrusted-text.ts';
import { FlushSink } from '../block/flush-sink.ts';
import { NbdServer } from '../block/nbd-server.ts';
import { guestExec } from '../guest/guest-command.ts';
import type { HostContext } from '../host-context.ts';
import type { Machine } from '../machine/machine.ts';
import { DIRTY_BITMAP, DIRTY_GRANULARITY } from '../machine/machine-disk.ts';
import { HeadMovedError } from '../overlay/commit-outcome.ts';
import type { DiskState } from '../overlay/disk-state.ts';
import { waitForJob } from '../qmp/jobs.ts';
import { type QmpClient, QmpError } from '../qmp/qmp-client.ts';
import type { TransactionAction } from '../qmp/types.ts';
import { NODES } from '../vm/qemu-command.ts';
import type { VmUser } from '../vm/uid.ts';
import { FREEZE_MS, freeze, isThawing, thaw, thawBeside } from './freeze.ts';

const JOB_MS = 6 * 3_600_000;
const TARGET_NODE = 'flush-target';
/** Bytes a second; thawing took up to 1.8 s beside a copy at full speed, and 41 to 49 ms beside this. */
const SPEED_WHILE_FROZEN = 65_536;

export interface FlushOptions {
  readonly context: HostContext;
  readonly machine: Machine;
  readonly disk: DiskState;
  /** The VM's user, which must reach the socket. */
  readonly owner: VmUser | null;
  /** `freeze`: by the guest agent, if it answers. Otherwise the guest stands still and this says how its disk was left. */
  readonly quiesce: 'freeze' | Consistency;
  readonly signal: AbortSignal;
}

/** Makes everything written so far durable. @throws FencedError, or what failed; then nothing is lost */
export async function flushMachine(options: FlushOptions): Promise<FlushReceipt> {
  const started = performance.now();
  const { machine, disk } = options;
  await disk.load();
  await disk.renewKeys(machine.record, options.signal);
  const { commit_id } = disk.head;
  // The bitmap says what was written since another head: only a comparison finds what this one lacks.
  if (machine.record.counts_from !== commit_id) await machine.update({ full_compare: true });
  const found = options.quiesce === 'freeze' ? await askGuest(machine) : options.quiesce;
  if (found === 'untouched') {
    await requireHead(disk, commit_id);
    return receiptOf(disk, started, { consistency: 'filesystem' });
  }
  const generation = disk.head.generation + 1;
  const job_id = `flush-${generation}`;
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
    size_bytes: disk.size_bytes,
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
      return receiptOf(disk, started, { consistency });
    }
    return await complete(options, sink, { generation, job_id, consistency, started });
  } catch (error) {
    await sink.abort(error).catch(() => undefined);
    throw error;
  } finally {
    await server.close(1_000);
  }
}

/** A receipt without a commit is for the head that the database has, and not one that it has lost. @throws HeadMovedError */
async function requireHead(disk: DiskState, commit_id: string): Promise<void> {
  const { commit_id: now, generation } = await disk.refresh();
  if (now !== commit_id) throw new HeadMovedError(generation);
}

function receiptOf(
  disk: DiskState,
  started: number,
  made: { consistency: Consistency; dirty_bytes?: number; uploaded_bytes?: number; segments?: number },
): FlushReceipt {
  return {
    generation: disk.head.generation,
    durable_at: disk.head.durable_at,
    dirty_bytes: made.dirty_bytes ?? 0,
    uploaded_bytes: made.uploaded_bytes ?? 0,
    segments: made.segments ?? 0,
    duration_ms: Math.round(performance.now() - started),
    consistency: made.consistency,
  };
}

/** Removes what a flush that failed, or an agent that died, has left in QEMU. */
async function clearLeftovers(machine: Machine): Promise<void> {
  const { qmp } = machine;
  for (const job of await qmp.execute('query-jobs', undefined)) {
    if (!job.id.startsWith('flush-')) continue;
    if (job.status !== 'concluded') {
      await qmp.execute('job-cancel', { id: job.id }).catch(() => undefined);
      await waitForJob(qmp, job.id, ['concluded'], { timeout_ms: 30_000 });
    }
    await qmp.execute('job-dismiss', { id: job.id }).catch(() => undefined);
  }
  await qmp.execute('blockdev-del', { 'node-name': TARGET_NODE }).catch(() => undefined);
  // Of whichever flush: one that was committed and has not ended too, or a successor would believe in the bitmap that it left.
  if (machine.record.flush) await machine.update({ flush: null });
}

/** Phase one: the point in time. Where nothing was dirty, no job is begun. */
async function begin(
  options: FlushOptions,
  socket_path: string,
  job_id: string,
): Promise<{ readonly consistency: Consistency; readonly dirty: boolean }> {
  const { machine, quiesce } = options;
  const { qmp } = machine;
  await qmp.execute('blockdev-add', {
    driver: 'nbd',
    'node-name': TARGET_NODE,
    server: { type: 'unix', path: socket_path },
    export: 'flush',
  });
  machine.disk.noteBegun();
  let consistency: Consistency = quiesce === 'freeze' ? 'crash' : quiesce;
  let begun = false;
  try {
    if (quiesce === 'freeze' && (await freeze(machine))) consistency = 'filesystem';
    if ((await machine.markedBytes()) === 0) return { consistency, dirty: false };
    if (machine.record.full_compare) await removeBitmap(machine);
    await qmp.execute('transaction', { actions: backupActions(job_id, machine.record.full_compare) });
    begun = true;
  } finally {
    // A guest that did not answer the freeze is not waited for again.
    if (quiesce === 'freeze' && consistency === 'crash') thawBeside(machine);
    else if (quiesce === 'freeze') await thaw(machine);
    if (!begun) await qmp.execute('blockdev-del', { 'node-name': TARGET_NODE }).catch(() => undefined);
  }
  return { consistency, dirty: true };
}

/** A job that has ended already needs none, and QEMU refuses it. Left slow it would go on for hours. */
async function giveFullSpeed(qmp: QmpClient, job_id: string): Promise<void> {
  try {
    await qmp.execute('block-job-set-speed', { device: job_id, speed: 0 });
  } catch (error) {
    if (!(error instanceof QmpError)) throw error;
  }
}

/**
 * By the bitmap, what was written since the last flush. Without one that can be believed (the last machine was
 * killed), all that the overlay holds, while a new bitmap begins at the same instant; hashes leave out what the
 * head has already.
 */
function backupActions(job_id: string, full_compare: boolean): TransactionAction[] {
  const common = {
    'job-id': job_id,
    device: NODES.overlay,
    target: TARGET_NODE,
    // Copying at full speed would keep the guest agent from being heard: it begins slowly, until the thaw.
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

/** One that is not to be believed: of a flush that was not undone before its agent died. Mostly there is none. */
async function removeBitmap({ qmp }: Machine): Promise<void> {
  const bitmap = { node: NODES.overlay, name: DIRTY_BITMAP };
  await qmp.execute('block-dirty-bitmap-remove', bitmap).catch(() => undefined);
}

const SYNC_MS = 5_000;

/**
 * `untouched`: nothing is dirty, for after a sync the guest has written nothing since it was thawed from the last flush.
 * `crash`: it does not answer, and need not be asked to freeze.
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
async function complete(options: FlushOptions, sink: FlushSink, begun: Begun): Promise<FlushReceipt> {
  const { machine, disk, signal } = options;
  const { qmp } = machine;
  const { job_id, generation, consistency } = begun;
  let committed = false;
  try {
    await giveFullSpeed(qmp, job_id);
    const synced = syncOverlay(machine, signal);
    synced.catch(() => undefined); // awaited below; the job may fail first
    const job = await waitForJob(qmp, job_id, ['pending'], { timeout_ms: JOB_MS, signal });
    if (job.status !== 'pending')
      throw new Error(untrustedText(job.error) || `the backup job ended as ${untrustedText(job.status)}`);
    const result = await sink.finish();
    await synced;
    const segments: SegmentRef[] = result.segments.map((written) => ({ ...written }));
    if (segments.length > 0) {
      const commit_id = randomUUID();
      const flush = { job_id, generation, commit_id, segments, consistency, dirty_bytes: result.dirty_bytes };
      await machine.update({ flush });
      // The control plane would refuse it once another has the disk; past our lease we do not even ask.
      options.context.lease.require();
      sink.keep();
      await disk.commit(options.context.client, machine.record, flush, signal);
    } else await requireHead(disk, disk.head.commit_id);
    committed = true;
    await finalize(machine, job_id);
    await machine.update({ flush: null, full_compare: false, counts_from: disk.head.commit_id });
    await machine.disk.noteFlushed();
    return receiptOf(disk, begun.started, {
      consistency,
      dirty_bytes: result.dirty_bytes,
      uploaded_bytes: result.uploaded_bytes,
      segments: segments.length,
    });
  } catch (error) {
    if (!committed && !machine.gone) {
      // Fenced, the machine is to be ended now: why it failed counts more than what the next flush has to undo.
      await abandon(machine).catch((err: unknown) =>
        options.context.log.warn({ err }, 'what a failed flush has left is undone by the next'),
      );
    }
    throw sinkFailure(sink, error);
  }
}

/** Before a commit: what QEMU has answered to the guest is on the host's disk too, whether or not the guest asked for that. */
async function syncOverlay({ exported }: Machine, signal: AbortSignal): Promise<void> {
  try {
    await exported.syncToDisk(signal);
  } catch (cause) {
    signal.throwIfAborted();
    throw new Error(`the host's disk does not take what the guest has written: ${messageOf(cause)}`, {
      cause,
    });
  }
}

/** QEMU only says that its target failed; the sink knows why. */
function sinkFailure(sink: FlushSink, error: unknown): unknown {
  return sink.failure === undefined ? error : sink.failure.cause;
}

async function finalize(machine: Machine, job_id: string): Promise<void> {
  const { qmp } = machine;
  await qmp.execute('job-finalize', { id: job_id });
  const job = await waitForJob(qmp, job_id, ['concluded'], { timeout_ms: 60_000 });
  await qmp.execute('job-dismiss', { id: job_id });
  await qmp.execute('blockdev-del', { 'node-name': TARGET_NODE });
  if (job.error) throw new Error(`the backup job ended with: ${untrustedText(job.error)}`);
}

/** Every dirty bit comes back; a guest stopped by the failed copy goes on. */
async function abandon(machine: Machine): Promise<void> {
  try {
    await clearLeftovers(machine);
    if (machine.record.full_compare) await removeBitmap(machine);
    await machine.resumeIfStalled();
  } catch (error) {
    if (!machine.gone)
      throw new Error(`a failed flush could not be undone: ${messageOf(error)}`, { cause: error });
  }
}

/**
 * Finishes or undoes what a dead agent left of a flush: committed, its job is finalized if it was not yet; otherwise
 * cancelled, and the next flush has it all.
 */
export async function settleFlush(machine: Machine, disk: DiskState): Promise<void> {
  if (machine.record.frozen) await thaw(machine);
  const { flush } = machine.record;
  const jobs = await machine.qmp.execute('query-jobs', undefined);
  const job = jobs.find((each) => each.id.startsWith('flush-'));
  if (!job && flush === null) return;
  await disk.load();
  const ours = flush !== null && (!job || flush.job_id === job.id);
  if (ours && disk.hasCommitted(flush)) {
    if (job?.status === 'pending') await finalize(machine, job.id);
    else if (job) await clearLeftovers(machine);
    await machine.update({ flush: null, full_compare: false, counts_from: flush.commit_id });
  } else if (job) await abandon(machine);
  else await machine.update({ flush: null });
}
