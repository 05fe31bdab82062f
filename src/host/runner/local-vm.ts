/**
 * An instance's VM as it exists on this host: its machine, the record of the last machine, and whether the overlay holds unsaved
 * writes. The runner knows the wanted state; this class changes the actual state.
 *
 *   no machine ──adopt, launch──▶ machine ──end──▶ no machine; unsaved writes unknown until the next look
 *
 * Invariant: at most one machine at a time, and none while the overlay is inspected or removed.
 */
import { randomUUID } from 'node:crypto';
import { rm } from 'node:fs/promises';
import type { Assignment, FlushReceipt, MemoryRef, Reason } from '../../agent-api/types.ts';
import type { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { assert, present } from '../../lib/assert.ts';
import type { InstanceId, VmId } from '../../lib/ids.ts';
import { type FlushOptions, flushMachine } from '../flush/flush-machine.ts';
import { type HostContext, vmOwner } from '../host-context.ts';
import type { Machine } from '../machine/machine.ts';
import { readRecord, removeRecord, type VmFolder, type VmRecord, writeRecord } from '../machine/record.ts';
import { removeLimitsOf } from '../machine/remove-limits.ts';
import { HeadMovedError } from '../overlay/commit-outcome.ts';
import { DiskState } from '../overlay/disk-state.ts';
import { fillMachine, launchMachine } from '../start/launch-machine.ts';
import { coldReason, launchOrResume } from '../start/resume-machine.ts';
import { cancelSuspend, type SuspendOptions, suspendMachine } from '../suspend/suspend-machine.ts';
import { allocatedBytes, overlayPaths, removeAside, removeOverlay } from '../vm/overlay.ts';
import { boundLog } from '../vm/qemu-process.ts';
import { adoptMachine, isLaunched, type Retry, repairMachine } from './adopt-machine.ts';
import type { MachineView } from './decide.ts';
import { findUnsavedWrites } from './unsaved-writes.ts';

const QEMU_LOG_MAX_BYTES = 1024 * 1024;

export class LocalVm {
  readonly disk: DiskState;
  /** Why the next boot, or this one, cannot continue where the last ended. Kept until it is reported. */
  recovered: Reason | null = null;
  /** Why writes of a boot are lost, as found when the overlay was last inspected. null: none are. */
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
  /** The name as which a boot consumes its saved memory: the same one in all its launches, also by the next agent. */
  #consumer: { readonly vm_id: VmId; readonly name: string } | null = null;

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
    if (!record) return;
    this.recovered = record.recovered ?? null;
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
    const before = this.#last?.vm_id === assignment.vm_id ? this.#last : null;
    const ran = before?.ran === true;
    const cold = before?.cold ?? null;
    const { disk } = this;
    const consumer = this.#consumerOf(assignment.vm_id);
    const launch = {
      context: this.#context,
      assignment,
      disk,
      ran,
      consumer,
      changed: this.#changed,
      signal,
    };
    const turn = run ? await this.#context.boots.take(this.#instance_id, signal) : null;
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
    // A reason that no boot has reported yet stays.
    this.recovered = launched.recovered ?? this.recovered;
    if (!run || !this.recovered) return;
    await launched.machine.update({ recovered: this.recovered });
    this.#last = launched.machine.record;
  }

  /** Random, so that a machine that takes this host's place without its files cannot take its consumption for its own. */
  #consumerOf(vm_id: VmId): string {
    if (this.#consumer?.vm_id !== vm_id) this.#consumer = { vm_id, name: `${vm_id}/${randomUUID()}` };
    return this.#consumer.name;
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

  /** Makes memory and disk durable together. @throws FencedError, or the failure; the guest then continues, or is {@link suspend_abandoned} */
  suspend(
    assignment: Assignment,
    signals: Pick<SuspendOptions, 'signal' | 'deadline' | 'closing'>,
  ): Promise<MemoryRef> {
    const machine = this.running;
    const { spec } = assignment;
    const owner = vmOwner(this.#context, spec.ssh_port);
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
    const { use } = await this.disk.judgeOverlay(assignment.own_since);
    // judgeOverlay assumes a killed QEMU; this one ended in order.
    this.disk.setFilled(filled);
    if (use === 'unsaved' && this.disk.head.generation === generation) await this.disk.markClean(assignment);
    this.#unsaved = false;
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
    await removeLimitsOf(this.#context, this.#instance_id);
  }

  /** After the final flush, without a machine: the overlay is a clean cache of the head. */
  async markSaved(assignment: Assignment): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    await this.disk.markClean(assignment);
    this.#unsaved = false;
  }

  async lookForUnsaved(assignment: Assignment): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    // Another host has had the disk since, and has reported the loss.
    if (this.#last && this.#last.epoch < assignment.own_since) this.recovered = null;
    const found = await findUnsavedWrites(this.#context, this.disk, assignment, this.#last);
    this.#unsaved = found.unsaved;
    this.lost = found.lost;
    this.recovered = this.lost ?? this.recovered;
  }

  /** Another boot is assigned: inspect the overlay again. */
  lookAgain(): void {
    if (!this.#machine) this.#unsaved = null;
  }

  /** The control plane has been told of `recovered`. */
  async noteReported(): Promise<void> {
    this.recovered = null;
    if (this.#machine?.record.recovered) await this.#machine.update({ recovered: null });
  }

  /** This boot is over, and its end is reported. */
  async forget(): Promise<void> {
    await removeRecord(this.#folder);
    this.#last = null;
    this.recovered = null;
  }

  /** A guest can make QEMU write warnings without end. */
  boundLog(): void {
    if (this.#machine) boundLog(this.#folder.qemu_log, QEMU_LOG_MAX_BYTES);
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
