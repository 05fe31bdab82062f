/**
 * What is there of an instance on this host: its machine, the record of the last one, and whether the overlay holds
 * something unsaved. The runner beside it knows what is wanted.
 *
 * Invariant: at most one machine at a time, and none while the overlay is looked at or removed.
 */
import { existsSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import type { Assignment, FlushReceipt, MemoryRef, Reason } from '../../agent-api/types.ts';
import type { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { assert, present } from '../../lib/assert.ts';
import type { InstanceId } from '../../lib/ids.ts';
import { type FlushOptions, flushMachine, settleFlush } from '../flush/flush-machine.ts';
import { type HostContext, vmOwner } from '../host-context.ts';
import { Machine } from '../machine/machine.ts';
import { readRecord, removeRecord, type VmFolder, type VmRecord, writeRecord } from '../machine/record.ts';
import { removeLimitsOf } from '../machine/remove-limits.ts';
import { FencedError, HeadMovedError } from '../overlay/commit-outcome.ts';
import { DiskState, InstanceGoneError } from '../overlay/disk-state.ts';
import { type BootWrites, isLost, type OverlayVerdict } from '../overlay/judge-overlay.ts';
import { LazyOverlay } from '../overlay/lazy-overlay.ts';
import { recoveredFrom, SET_ASIDE } from '../overlay/prepare-overlay.ts';
import { fillMachine, launchMachine } from '../start/launch-machine.ts';
import { coldReason, launchOrResume } from '../start/resume-machine.ts';
import { runOn, suspendMachine } from '../suspend/suspend-machine.ts';
import { allocatedBytes, overlayPaths, removeAside, removeOverlay, setAsideOverlay } from '../vm/overlay.ts';
import { isAlive, userOf } from '../vm/process-identity.ts';
import { vmSockets } from '../vm/qemu-command.ts';
import { boundLog } from '../vm/qemu-process.ts';
import { takeRuntimeDir, type VmUser } from '../vm/uid.ts';
import type { MachineView } from './decide.ts';

const QEMU_LOG_MAX_BYTES = 1024 * 1024;

export class LocalVm {
  readonly disk: DiskState;
  /** Why the next boot, or this one, cannot continue where the last ended, until that is said. */
  recovered: Reason | null = null;
  /** The last look has found that what a boot wrote is lost. */
  lost: Reason | null = null;
  readonly #context: HostContext;
  readonly #instance_id: InstanceId;
  readonly #folder: VmFolder;
  readonly #changed: () => void;
  #machine: Machine | null = null;
  #last: VmRecord | null = null;
  #panicked = false;
  #damage: SegmentCorruptError | null = null;
  #unsaved: boolean | null = null;

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
  /** There is a machine whose guest runs no further, and whose process may be gone: it is to be let go of. */
  get isOver(): boolean {
    return this.#machine !== null && (this.#machine.gone || this.#machine.broken);
  }
  /** The last machine ended by a panic of its guest's kernel. */
  get panicked(): boolean {
    return this.#panicked;
  }
  /** The last machine ended because its guest had read what is damaged in the store. */
  get damage(): SegmentCorruptError | null {
    return this.#damage;
  }
  /** Whether the overlay holds writes beyond the head while no machine has it; null until it was looked at. */
  get unsaved(): boolean | null {
    return this.#unsaved;
  }
  /**
   * At most so many bytes of the overlay are not durable, for as long as nobody knows how many: after a machine was killed.
   * All that the overlay takes, of which a part may be what was copied from the head.
   */
  overlayBytes(): Promise<number | null> {
    return allocatedBytes(overlayPaths(this.#context.paths.overlays, this.#instance_id).overlay);
  }
  /** A machine of this boot was launched, now or before. */
  wasLaunched(vm_id: string | null): boolean {
    return vm_id !== null && this.#last?.vm_id === vm_id && !this.#last.cold;
  }
  /** The durable memory and disk of this boot, whose guest stands still for good. */
  savedMemory(vm_id: string | null): MemoryRef | null {
    const record = this.#machine?.record ?? this.#last;
    return (vm_id !== null && record?.vm_id === vm_id && record.memory) || null;
  }
  /** The guest stands still for a suspend that was given up, and QEMU has not heard yet that it is to run on. */
  get standing(): boolean {
    const { suspending, memory } = this.#machine?.record ?? {};
    return suspending === true && !memory;
  }
  /** The last machine ended before its guest was found to go on from saved memory. */
  get resuming(): boolean {
    return (this.#machine?.record ?? this.#last)?.resuming === true;
  }

  /** The template that the last machine went on from, if its guest was not found to come up. */
  get template(): VmRecord['template'] {
    return (this.#machine?.record ?? this.#last)?.template;
  }

  view(vm_id: string | null): MachineView {
    const machine = this.#machine;
    if (!machine || this.isOver) return 'none';
    return vm_id !== null && machine.record.vm_id !== vm_id ? 'stale' : machine.view;
  }

  /**
   * Finds what an earlier agent left and frees it of what that one's death may have left half done. Where it throws nothing
   * is held, and it can be tried again.
   */
  async adopt(retrying: (work: () => Promise<void>) => Promise<void>): Promise<void> {
    const record = await readRecord(this.#folder);
    this.#last = record;
    if (!record) return;
    this.recovered = record.recovered ?? null;
    const log = this.#context.log;
    const owner = this.#takeSockets(record);
    const lazy = await this.#serveAgain(record, owner);
    const options = { folder: this.#folder, record, log, changed: this.#changed, lazy, owner };
    const machine = await Machine.adopt(options).catch(async (error: unknown) => {
      await lazy?.close();
      throw error;
    });
    if (!machine) await lazy?.close();
    // Whether or not its process is still there: an agent that is asked to end ends what it is launching.
    if (!record.released || record.template?.awake === false) {
      log.info('a launch was under way; it begins again');
      await machine?.end();
      // Why it is to boot cold stays known.
      if (!record.cold) await this.forget();
      return;
    }
    if (!machine) return;
    this.#machine = machine;
    this.disk.setOverlayImage(record.image_version);
    log.info({ vm_id: record.vm_id, pid: record.identity.pid }, 'VM adopted');
    // Nothing of a flush is left, and nothing of it is to move.
    if (machine.record.memory) return;
    if (machine.record.suspending) await retrying(() => runOn(machine));
    await retrying(() => unlessFenced(settleFlush(machine, this.disk)));
    if (lazy) await retrying(() => unlessFenced(this.#fillOn(machine, lazy)));
  }

  /** Before anything in their folder is touched: agents of before left it to the VM's user. Answers who that is. */
  #takeSockets({ identity }: VmRecord): VmUser | null {
    const { vm_gid: gid } = this.#context;
    const uid = gid === null ? null : userOf(identity);
    if (uid === null || gid === null) return null;
    const { runtime } = this.#folder;
    if (existsSync(runtime)) takeRuntimeDir(runtime, uid, Object.values(vmSockets(runtime)));
    return { uid, gid };
  }

  /** QEMU may wait for a read, and not answer before it has it: the export comes first. */
  async #serveAgain(record: VmRecord, owner: VmUser | null): Promise<LazyOverlay | null> {
    const { lazy } = record;
    if (!lazy || !isAlive(record.identity)) return null;
    const { size_bytes, base_path } = lazy;
    this.disk.setFilled('no');
    return LazyOverlay.open({
      context: this.#context,
      runtime_dir: this.#folder.runtime,
      disk: this.disk,
      owner,
      size_bytes,
      base_path,
    });
  }

  async #fillOn(machine: Machine, lazy: LazyOverlay): Promise<void> {
    await this.disk.refresh();
    fillMachine(machine, lazy);
  }

  /** With `run: false` the guest stays off: the machine only opens the disk. */
  async launch(assignment: Assignment, signal: AbortSignal, { run }: { run: boolean }): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    this.#unsaved = null;
    const before = this.#last?.vm_id === assignment.vm_id ? this.#last : null;
    const ran = before?.ran === true;
    const cold = before?.cold ?? null;
    const { disk } = this;
    const launch = { context: this.#context, assignment, disk, ran, changed: this.#changed, signal };
    const turn = run ? await this.#context.boots.take(signal) : null;
    const launching = run ? launchOrResume(launch, cold) : launchMachine(launch, { run });
    const launched = await launching.catch(async (error: unknown) => {
      turn?.();
      await removeLimitsOf(this.#context, this.#instance_id);
      throw error;
    });
    if (turn) launched.machine.onceBooted(turn);
    this.#machine = launched.machine;
    this.#last = launched.machine.record;
    this.#panicked = false;
    this.#damage = null;
    // What was to be said before a boot came up, it still is.
    this.recovered = launched.recovered ?? this.recovered;
    if (!run || !this.recovered) return;
    await launched.machine.update({ recovered: this.recovered });
    this.#last = launched.machine.record;
  }

  flush(
    assignment: Assignment,
    quiesce: FlushOptions['quiesce'],
    signal: AbortSignal,
  ): Promise<FlushReceipt> {
    const owner = vmOwner(this.#context, assignment.spec.ssh_port);
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

  /** Makes memory and disk durable together. @throws FencedError, or what failed; then the guest runs on, or is {@link standing} */
  suspend(assignment: Assignment, signal: AbortSignal, closing: AbortSignal): Promise<MemoryRef> {
    const machine = this.running;
    const { spec } = assignment;
    const owner = vmOwner(this.#context, spec.ssh_port);
    const options = { context: this.#context, machine, disk: this.disk, spec, owner, signal, closing };
    const { lazy } = machine;
    if (!lazy) return suspendMachine(options);
    return lazy.duringFlush(async () => {
      const memory = await suspendMachine(options);
      // QEMU has let go of its disk: nothing may be copied into it any more.
      await lazy.stopFilling();
      return memory;
    }, signal);
  }

  /** The suspend is not wanted any more: the guest runs on where there still is a machine. */
  async runOn(): Promise<void> {
    const machine = this.#machine;
    if (!machine || machine.gone) return this.#note({ memory: null });
    const { lazy } = machine;
    // With its memory durable nothing was copied any more. The head first, which the filling needs: the rest cannot fail then.
    const idle = lazy?.filling === false;
    if (idle) await this.disk.refresh();
    await runOn(machine);
    if (!idle) return;
    fillMachine(machine, lazy);
    if (machine.view === 'up') lazy.booted();
  }

  /** Ends the machine, whose memory and disk are durable; the overlay, if it is what it should be, is a cache of the head. */
  async endSuspended(assignment: Assignment, { generation }: MemoryRef): Promise<void> {
    await this.end();
    await this.disk.refresh();
    const { filled } = this.disk;
    const { use } = await this.disk.judgeOverlay(assignment.own_since);
    // As it was while its QEMU ran, which has just ended in order.
    this.disk.setFilled(filled);
    if (use === 'unsaved' && this.disk.head.generation === generation) await this.disk.vouchClean(assignment);
    this.#unsaved = false;
  }

  /** This boot does not go on from its memory, or a template: its next launch boots. */
  async bootCold(why: Reason): Promise<void> {
    await this.end();
    await this.#note({ cold: coldReason(why), resuming: false, template: null, released: false });
  }

  async #note(change: Partial<VmRecord>): Promise<void> {
    if (!this.#last) return;
    this.#last = { ...this.#last, ...change };
    await writeRecord(this.#folder, this.#last);
  }

  /** Ends the machine if there is one; what it wrote stays in the overlay. */
  async end(): Promise<void> {
    const machine = this.#machine;
    if (!machine) return;
    await machine.end();
    this.#panicked = machine.panicked;
    this.#damage = machine.damage;
    this.#last = machine.record;
    this.#machine = null;
    this.#unsaved = null;
    await removeLimitsOf(this.#context, this.#instance_id);
  }

  /** The final flush is durable and the machine gone: the overlay is a cache of the head now. */
  async markSaved(assignment: Assignment): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    await this.disk.vouchClean(assignment);
    this.#unsaved = false;
  }

  async lookForUnsaved(assignment: Assignment): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    // What was to be said before the disk was on another host, that one has said.
    if (this.#last && this.#last.epoch < assignment.own_since) this.recovered = null;
    try {
      await this.disk.refresh(assignment.epoch);
      const verdict = await this.disk.judgeOverlay(assignment.own_since);
      this.#unsaved = verdict.use === 'unsaved';
      const writes = this.#writesOf(assignment);
      const { generation } = this.disk.head;
      this.lost = isLost(verdict, writes) ? recoveredFrom(generation, 'the next one', verdict) : null;
      this.recovered = this.lost ?? this.recovered;
      // The head is all that the guest wrote: its memory goes on from that alone.
      if (this.#unsaved && writes.all_durable) await this.#giveUpOverlay(verdict);
    } catch (error) {
      // Whatever is tried next finds the same, and says it.
      if (!(error instanceof InstanceGoneError || error instanceof FencedError)) throw error;
      this.#unsaved = false;
    }
  }

  async #giveUpOverlay(verdict: OverlayVerdict): Promise<void> {
    const { overlays } = this.#context.paths;
    this.#unsaved = false;
    if (verdict.otherwise === 'remove') return removeOverlay(overlays, this.#instance_id);
    const kept = await setAsideOverlay(overlays, this.#instance_id);
    this.#context.log.error({ kept }, SET_ASIDE);
    this.lost = recoveredFrom(this.disk.head.generation, 'the next one', verdict);
    this.recovered = this.lost;
  }

  #writesOf({ vm_id, suspended, resume, previous_failed }: Assignment): BootWrites {
    const ran = this.#last?.vm_id === vm_id && this.#last.ran;
    return {
      all_durable: suspended || (resume !== null && !ran),
      may_have_written: ran || previous_failed,
    };
  }

  /** Something else is to be looked at: another boot. */
  lookAgain(): void {
    if (!this.#machine) this.#unsaved = null;
  }

  /** This boot runs, and why it does not continue where the last ended is said. */
  async saidToRun(): Promise<void> {
    this.recovered = null;
    if (this.#machine?.record.recovered) await this.#machine.update({ recovered: null });
  }

  /** This boot is over and said. */
  async forget(): Promise<void> {
    await removeRecord(this.#folder);
    this.#last = null;
    this.recovered = null;
  }

  /** A guest can make QEMU complain without end. */
  boundLog(): void {
    if (this.#machine) boundLog(this.#folder.qemu_log, QEMU_LOG_MAX_BYTES);
  }

  /** All of the instance on this host; no machine has its disk. */
  async remove(): Promise<void> {
    await removeOverlay(this.#context.paths.overlays, this.#instance_id);
    await removeAside(this.#context.paths.overlays, this.#instance_id);
    await rm(this.#folder.folder, { recursive: true, force: true });
  }

  /** Lets go; a machine runs on, to be adopted. */
  release(): void {
    this.#machine?.release();
  }
}

/** Nothing is settled for a VM whose disk is elsewhere by now: it is ended once its assignment is looked at. */
async function unlessFenced(work: Promise<void>): Promise<void> {
  try {
    await work;
  } catch (error) {
    if (!(error instanceof FencedError)) throw error;
  }
}
