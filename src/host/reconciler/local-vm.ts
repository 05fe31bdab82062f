/**
 * An instance's VM as it exists on this host: its machine, the record of the last machine, and whether the overlay
 * holds unsaved writes. The reconciler knows the wanted state; this class changes the actual state.
 *
 *   no machine ──adopt, launch──▶ machine ──end──▶ no machine; unsaved writes unknown until the next look
 *
 * Invariant: there is at most one machine at a time, and none while the overlay is inspected or removed.
 */
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import type { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import type { Assignment, FlushResult, MemoryRef, Reason } from '../../protocol/types.ts';
import { assert, present } from '../../shared/assert.ts';
import type { InstanceId, VmId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { DiskState, FencedError, HeadMovedError, InstanceGoneError } from '../disk/disk-state.ts';
import { type FlushOptions, flushMachine, settleFlush } from '../disk/flush-disk.ts';
import { isLost, type RanSince, type SaidOfWrites, writesOf } from '../disk/judge-overlay.ts';
import { LazyOverlay } from '../disk/lazy-overlay.ts';
import {
  allocatedBytes,
  type NoteLoss,
  overlayPaths,
  recoveredFrom,
  removeAside,
  removeOverlay,
  setAside,
} from '../disk/overlay-files.ts';
import { type HostContext, vmOwner } from '../host-context.ts';
import { removeLimits, takeRuntimeDir, type VmUser } from '../qemu/confinement.ts';
import { vmSockets } from '../qemu/qemu-command.ts';
import { boundQemuLog, isProcessAlive, userOfProcess } from '../qemu/qemu-process.ts';
import { fillMachine, launchMachine } from '../vm/launch-machine.ts';
import { Machine } from '../vm/machine.ts';
import {
  readLoss,
  readRecord,
  removeLoss,
  removeRecord,
  type UnreportedLoss,
  type VmFolder,
  type VmRecord,
  writeLoss,
  writeRecord,
} from '../vm/record.ts';
import { coldReason, launchOrResume } from '../vm/resume-machine.ts';
import { cancelSuspend, type SuspendOptions, suspendMachine } from '../vm/suspend-machine.ts';
import type { MachineView } from './next-step.ts';

export interface Adoption {
  readonly context: HostContext;
  readonly folder: VmFolder;
  readonly record: VmRecord;
  readonly disk: DiskState;
  readonly changed: () => void;
}

/** Retries until it succeeds or the machine is gone. */
export type Retry = (work: () => Promise<void>) => Promise<void>;

/**
 * Adopts the machine that an earlier agent left, and completes or undoes the work that the agent's death interrupted: a freeze, a
 * suspend, a flush, or the filling of an overlay.
 *
 * Invariant: the lazy export is served before QEMU is spoken to. QEMU may wait for a read, and answers nothing before it.
 *
 * null: its process is gone or was ended. On an error nothing is held, and the caller may try again.
 */
async function adoptMachine(adoption: Adoption): Promise<Machine | null> {
  const { context, folder, record, disk, changed } = adoption;
  const owner = takeSockets(adoption);
  const lazy = await serveAgain(adoption, owner);
  const options = { folder, record, log: context.log, changed, lazy, owner, guest_network: context.network };
  const machine = await Machine.adopt(options).catch(async (error: unknown) => {
    await lazy?.close();
    throw error;
  });
  if (!machine) {
    await lazy?.close();
    return null;
  }
  if (!isLaunched(record)) {
    await machine.end();
    return null;
  }
  disk.setOverlayImage(record.image_version);
  context.log.info({ vm_id: record.vm_id, pid: record.identity.pid }, 'VM adopted');
  return machine;
}

/** False: the agent died during the launch, and nobody has used the guest. The launch begins again. */
function isLaunched({ released, template }: VmRecord): boolean {
  return released && template?.awake !== false;
}

/** Finishes or undoes what the earlier agent had begun with this machine. */
async function repairMachine(machine: Machine, disk: DiskState, retry: Retry): Promise<void> {
  // With durable memory no flush is left to settle, and the disk must not change.
  if (machine.record.memory) return;
  if (machine.record.suspending) await retry(() => cancelSuspend(machine));
  await retry(() => unlessFenced(settleFlush(machine, disk)));
  const { lazy } = machine;
  if (!lazy) return;
  await retry(() =>
    unlessFenced(
      (async () => {
        await disk.refresh();
        fillMachine(machine, lazy);
      })(),
    ),
  );
}

/** Before any file in the sockets' folder is touched: an earlier agent may have left the folder to the VM's user. */
function takeSockets({ context, folder: { runtime }, record }: Adoption): VmUser | null {
  const { vm_gid: gid } = context;
  const uid = gid === null ? null : userOfProcess(record.identity);
  if (uid === null || gid === null) return null;
  if (existsSync(runtime)) takeRuntimeDir(runtime, uid, Object.values(vmSockets(runtime)));
  return { uid, gid };
}

async function serveAgain(
  { context, folder, record, disk }: Adoption,
  owner: VmUser | null,
): Promise<LazyOverlay | null> {
  const { lazy } = record;
  if (!lazy || !isProcessAlive(record.identity)) return null;
  disk.setFilled('no');
  return LazyOverlay.open({ context, runtime_dir: folder.runtime, disk, owner, ...lazy });
}

/** A fenced VM needs no repair: it is ended once its assignment arrives. */
async function unlessFenced(work: Promise<void>): Promise<void> {
  try {
    await work;
  } catch (error) {
    if (!(error instanceof FencedError)) throw error;
  }
}

export interface UnsavedWrites {
  /** The overlay holds writes beyond the head. */
  readonly unsaved: boolean;
  /** The head that has everything that guests have written; null: none has, or it is not known. */
  readonly saved_by: string | null;
  /** Why writes of a boot are lost; null: none are. */
  readonly lost: Reason | null;
}

/**
 * Whether the overlay of an instance without a machine holds writes beyond the head, and whether a boot's writes are lost. The
 * runner inspects the overlay before it decides: a stop saves such writes, and a loss is reported once.
 *
 * `last`: the record of the last machine here. `noteLoss` is called before an overlay is set aside.
 */
export async function findUnsavedWrites(
  {
    context,
    disk,
    noteLoss,
  }: {
    readonly context: Pick<HostContext, 'log'> & { readonly paths: Pick<HostContext['paths'], 'overlays'> };
    readonly disk: DiskState;
    readonly noteLoss: NoteLoss;
  },
  assignment: Pick<Assignment, 'vm_id' | 'epoch'> & RanSince & SaidOfWrites,
  last: VmRecord | null,
): Promise<UnsavedWrites> {
  const { instance_id } = disk;
  try {
    const { commit_id, generation } = await disk.refresh(assignment.epoch);
    const verdict = await disk.judgeOverlay(assignment);
    const writes = writesOf(assignment, last?.vm_id === assignment.vm_id && last.ran);
    // What a boot with memory does with its overlay depends on whether the memory is consumed.
    if (verdict.use === 'unsaved' && !assignment.suspended)
      return { unsaved: true, saved_by: null, lost: null };
    const recovered = recoveredFrom(generation, 'the next one', verdict);
    // The head is all that the guest wrote, and its memory matches that head alone.
    if (verdict.use === 'unsaved' && verdict.otherwise === 'remove')
      await removeOverlay(context.paths.overlays, instance_id);
    else if (verdict.use === 'unsaved') {
      await noteLoss(recovered, true);
      await setAside({ context, instance_id, disk });
      return { unsaved: false, saved_by: null, lost: recovered };
    } else if (isLost(verdict, writes)) {
      await noteLoss(recovered, false);
      return { unsaved: false, saved_by: null, lost: recovered };
    }
    return { unsaved: false, saved_by: commit_id, lost: null };
  } catch (error) {
    // The next step finds the same, and reports it.
    if (!(error instanceof InstanceGoneError || error instanceof FencedError)) throw error;
    return { unsaved: false, saved_by: null, lost: null };
  }
}

const QEMU_LOG_MAX_BYTES = 1024 * 1024;

export class LocalVm {
  readonly disk: DiskState;
  /** Why writes of a boot are lost, as found when the overlay was last inspected. null: none are. */
  lost: Reason | null = null;
  /** Without a machine: the head that has everything that guests have written. null: none has, or it is not known. */
  saved_by: string | null = null;
  readonly #context: HostContext;
  readonly #instance_id: InstanceId;
  readonly #folder: VmFolder;
  readonly #changed: () => void;
  #machine: Machine | null = null;
  #last: VmRecord | null = null;
  #panicked = false;
  #damage: SegmentCorruptError | null = null;
  #unsaved: boolean | null = null;
  /** The name as which a boot consumes its saved memory: the same one in all its launches, also by the next agent. */
  #consumer: { readonly vm_id: VmId; readonly name: string } | null = null;
  #loss: UnreportedLoss | null = null;

  constructor(context: HostContext, instance_id: InstanceId, folder: VmFolder, changed: () => void) {
    this.#context = context;
    this.#instance_id = instance_id;
    this.#folder = folder;
    this.#changed = changed;
    this.disk = new DiskState(context, instance_id);
  }

  get machine(): Machine | null {
    return this.#machine;
  }
  get running(): Machine {
    return present(this.#machine, 'machine');
  }
  /** The machine's guest runs no further, and its process may be gone: end it. */
  get isOver(): boolean {
    return this.#machine !== null && (this.#machine.gone || this.#machine.broken);
  }
  /** The last machine ended by a panic of its guest's kernel. */
  get panicked(): boolean {
    return this.#panicked;
  }
  /** Set if the last machine ended because its guest read a damaged segment. */
  get damage(): SegmentCorruptError | null {
    return this.#damage;
  }
  /** Without a machine: whether the overlay holds writes beyond the head. null: not inspected yet. */
  get unsaved(): boolean | null {
    return this.#unsaved;
  }
  /** Why the next boot, or this one, cannot continue where the last ended. Kept, also on the disk, until it is reported. */
  get recovered(): Reason | null {
    return this.#loss?.reason ?? null;
  }
  /**
   * An upper bound of the bytes that are not durable after a machine was killed: the overlay's allocated size, which includes
   * blocks that were copied from the head.
   */
  overlayBytes(): Promise<number | null> {
    return allocatedBytes(overlayPaths(this.#context.paths.overlays, this.#instance_id).overlay);
  }
  /** A machine of this boot was launched, now or before. */
  wasLaunched(vm_id: string | null): boolean {
    return vm_id !== null && this.#last?.vm_id === vm_id && !this.#last.cold;
  }
  /** The guest of this boot may have run here. */
  mayHaveRun(vm_id: string): boolean {
    const record = this.#machine?.record ?? this.#last;
    return record?.vm_id === vm_id && record.ran;
  }
  /** The durable memory of this boot; its guest is paused and will not run again here. */
  savedMemory(vm_id: string | null): MemoryRef | null {
    const record = this.#machine?.record ?? this.#last;
    return (vm_id !== null && record?.vm_id === vm_id && record.memory) || null;
  }
  /** The guest is paused for a suspend that was given up, and QEMU has not been told to continue. */
  get suspend_abandoned(): boolean {
    const { suspending, memory } = this.#machine?.record ?? {};
    return suspending === true && !memory;
  }
  /** The guest was started from saved memory and has not answered yet. */
  get resuming(): boolean {
    return (this.#machine?.record ?? this.#last)?.resuming === true;
  }

  /** The template that the guest was started from, until it answers. */
  get template(): VmRecord['template'] {
    return (this.#machine?.record ?? this.#last)?.template;
  }

  view(vm_id: string | null): MachineView {
    const machine = this.#machine;
    if (!machine || this.isOver) return 'none';
    return vm_id !== null && machine.record.vm_id !== vm_id ? 'stale' : machine.view;
  }

  /** Adopts the machine that an earlier agent left, if any. On an error nothing is held, and the caller may try again. */
  async adopt(retry: Retry): Promise<void> {
    const record = await readRecord(this.#folder);
    this.#last = record;
    this.#loss = await readLoss(this.#folder);
    if (!record) return;
    if (record.consumer) this.#consumer = { vm_id: record.vm_id, name: record.consumer };
    const { disk } = this;
    const [context, folder, changed] = [this.#context, this.#folder, this.#changed];
    const machine = await adoptMachine({ context, folder, record, disk, changed });
    if (!isLaunched(record)) {
      context.log.info('the agent ended during a launch; it begins again');
      // A record with `cold` keeps why the next launch must boot, one with `consumer` as whom it may consume the memory.
      if (record.cold) return;
      if (record.consumer) this.#last = null;
      else await this.forget();
      return;
    }
    if (!machine) return;
    this.#machine = machine;
    await repairMachine(machine, disk, retry);
  }

  /** With `run: false` the guest never runs: the machine only opens the disk. */
  async launch(assignment: Assignment, signal: AbortSignal, { run }: { run: boolean }): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    this.#unsaved = null;
    this.saved_by = null;
    const before = this.#last?.vm_id === assignment.vm_id ? this.#last : null;
    const ran = before?.ran === true;
    const cold = before?.cold ?? null;
    const { disk } = this;
    const consumer = this.#consumerOf(assignment.vm_id);
    const launch = {
      ...{ context: this.#context, assignment, disk, ran, consumer, changed: this.#changed, signal },
      noteLoss: this.#noteLossOf(assignment),
    };
    const turn = run ? await this.#context.boots.take(this.#instance_id, signal) : null;
    const launching = run ? launchOrResume(launch, cold) : launchMachine(launch, { run });
    const machine = await launching.catch(async (error: unknown) => {
      turn?.();
      await removeLimitsOf(this.#context, this.#instance_id);
      await this.#learnWhetherItRan(assignment.vm_id);
      throw error;
    });
    if (turn) machine.onceBooted(turn);
    this.#machine = machine;
    this.#last = machine.record;
    this.#panicked = false;
    this.#damage = null;
  }

  /** After a failed launch: a guest that may have run is never resumed from the same memory again. */
  async #learnWhetherItRan(vm_id: VmId): Promise<void> {
    const record = await readRecord(this.#folder);
    if (record?.vm_id === vm_id && record.ran) this.#last = record;
  }

  /** Random, so that a machine that takes this host's place without its files cannot take its consumption for its own. */
  #consumerOf(vm_id: VmId): string {
    if (this.#consumer?.vm_id !== vm_id) this.#consumer = { vm_id, name: `${vm_id}/${randomUUID()}` };
    return this.#consumer.name;
  }

  /** Records a loss durably, before it is final. An earlier one that is not reported gives way: the newest says from where the disk continues. */
  #noteLossOf({ epoch }: Assignment): NoteLoss {
    return async (reason, set_aside) => {
      const loss = { reason, epoch, set_aside: set_aside || this.#loss?.set_aside === true };
      if (isDeepStrictEqual(loss, this.#loss)) return;
      await writeLoss(this.#folder, loss);
      this.#loss = loss;
    };
  }

  flush(assignment: Assignment, quiesce: FlushOptions['quiesce'], signal: AbortSignal): Promise<FlushResult> {
    const owner = vmOwner(this.#context, assignment.spec.slot);
    const machine = this.running;
    const options = { context: this.#context, machine, disk: this.disk, owner, quiesce, signal };
    const flushOnce = () => {
      const { lazy } = machine;
      return lazy ? lazy.duringFlush(() => flushMachine(options), signal) : flushMachine(options);
    };
    return flushOnce().catch((error: unknown) => {
      if (error instanceof HeadMovedError) return flushOnce();
      throw error;
    });
  }

  /** Makes memory and disk durable together. @throws FencedError, or the failure; the guest then continues, or is {@link suspend_abandoned} */
  suspend(
    assignment: Assignment,
    signals: Pick<SuspendOptions, 'signal' | 'deadline' | 'closing'>,
  ): Promise<MemoryRef> {
    const machine = this.running;
    const { spec } = assignment;
    const owner = vmOwner(this.#context, spec.slot);
    const options = { context: this.#context, machine, disk: this.disk, spec, owner, ...signals };
    const { lazy } = machine;
    if (!lazy) return suspendMachine(options);
    return lazy.duringFlush(async () => {
      const memory = await suspendMachine(options);
      // QEMU no longer owns its disk: nothing may be copied into the overlay.
      await lazy.stopFilling();
      return memory;
    }, signals.signal);
  }

  /** The suspend is no longer wanted: the guest continues if its machine still exists. */
  async cancelSuspend(): Promise<void> {
    const machine = this.#machine;
    if (!machine || machine.gone) return this.#note({ memory: null });
    const { lazy } = machine;
    // The suspend stopped the filling. The filling needs the head; ask for it first, so that what follows cannot fail.
    const idle = lazy?.filling === false;
    if (idle) await this.disk.refresh();
    await cancelSuspend(machine);
    await machine.ports.resume();
    if (!idle) return;
    fillMachine(machine, lazy);
    if (machine.view === 'up') lazy.booted();
  }

  /** Ends a machine whose memory and disk are durable. The overlay, if it matches, becomes a clean cache of the head. */
  async endSuspended(assignment: Assignment, { generation }: MemoryRef): Promise<void> {
    await this.end();
    await this.disk.refresh();
    const { filled } = this.disk;
    const { use } = await this.disk.judgeOverlay(assignment);
    // judgeOverlay assumes a killed QEMU; this one ended in order.
    this.disk.setFilled(filled);
    const is_head = this.disk.head.generation === generation;
    if (use === 'unsaved' && is_head) await this.disk.keepAsCache(assignment);
    this.#unsaved = false;
    this.saved_by = is_head ? this.disk.head.commit_id : null;
  }

  /** The next launch of this boot neither resumes from memory nor from a template: it boots. */
  async bootCold(why: Reason): Promise<void> {
    await this.end();
    await this.#note({ cold: coldReason(why), resuming: false, template: null, released: false });
  }

  async #note(change: Partial<VmRecord>): Promise<void> {
    if (!this.#last) return;
    this.#last = { ...this.#last, ...change };
    await writeRecord(this.#folder, this.#last);
  }

  /** Ends the machine, if any. Its writes stay in the overlay. */
  async end(): Promise<void> {
    const machine = this.#machine;
    if (!machine) return;
    await machine.end();
    this.#panicked = machine.panicked;
    this.#damage = machine.damage;
    this.#last = machine.record;
    this.#machine = null;
    this.#unsaved = null;
    this.saved_by = null;
    await removeLimitsOf(this.#context, this.#instance_id);
  }

  /** After the final flush, without a machine. `commit_id`: the head that it made or found, which has everything. */
  async markSaved(assignment: Assignment, commit_id: string): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    await this.disk.keepAsCache(assignment);
    this.#unsaved = false;
    this.saved_by = commit_id;
  }

  async lookForUnsaved(assignment: Assignment): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    const { epoch, set_aside } = this.#loss ?? { epoch: assignment.epoch, set_aside: false };
    // Another host has had the disk since, and has reported the loss, unless only this host knows of it.
    if (epoch < assignment.own_since && !set_aside) await this.noteReported();
    const found = await findUnsavedWrites(
      { context: this.#context, disk: this.disk, noteLoss: this.#noteLossOf(assignment) },
      assignment,
      this.#last,
    );
    this.#unsaved = found.unsaved;
    this.lost = found.lost;
    this.saved_by = found.saved_by;
  }

  /** Another boot is assigned, or a report did not count: inspect the overlay again. */
  lookAgain(): void {
    if (this.#machine) return;
    this.#unsaved = null;
    this.saved_by = null;
  }

  /** A report of `recovered` counted. */
  async noteReported(): Promise<void> {
    if (!this.#loss) return;
    await removeLoss(this.#folder);
    this.#loss = null;
  }

  /** This boot is over, and its end is reported. */
  async forget(): Promise<void> {
    await removeRecord(this.#folder);
    this.#last = null;
  }

  /** A guest can make QEMU write warnings without end. */
  boundLog(): void {
    if (this.#machine) boundQemuLog(this.#folder.qemu_log, QEMU_LOG_MAX_BYTES);
  }

  /** Removes everything of the instance from this host. There is no machine. */
  async remove(): Promise<void> {
    await removeOverlay(this.#context.paths.overlays, this.#instance_id);
    await removeAside(this.#context.paths.overlays, this.#instance_id);
    await rm(this.#folder.folder, { recursive: true, force: true });
  }

  /** Disconnects from the machine, which runs on. */
  release(): void {
    this.#machine?.release();
  }
}

const LIMIT_TRIES = 10;

/** Removes a VM's control group. A dead process stays in it until it is reaped, which may take a moment. */
async function removeLimitsOf(
  { cgroups, log }: Pick<HostContext, 'cgroups' | 'log'>,
  instance_id: InstanceId,
): Promise<void> {
  for (let attempt = 0; attempt < LIMIT_TRIES; attempt++) {
    const problem = removeLimits(cgroups, instance_id);
    if (problem === null) return;
    if (attempt + 1 === LIMIT_TRIES) log.warn({ problem }, 'a control group could not be removed');
    await pause(backoffMs(attempt, 10, 200));
  }
}
