/**
 * The one owner of an instance's VM on this host. It looks at what is wanted and what is there, takes one step
 * (decide.ts), and looks again; steps never overlap. Keys are pushed beside the steps, because they must not wait
 * for a long flush.
 *
 * A step is given up when what it serves is no longer wanted; a flush is not, because its caller waits.
 */
import { rm } from 'node:fs/promises';
import type { Assignment, FlushReceipt, Observation, Reason } from '../../agent-api/types.ts';
import { assert, present } from '../../lib/assert.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { messageOf } from '../../lib/errors.ts';
import type { FlushId, InstanceId } from '../../lib/ids.ts';
import type { HostContext } from '../host-context.ts';
import { removeLimits } from '../vm/cgroup.ts';
import { removeOverlay } from '../vm/overlay.ts';
import { AutoFlush } from './auto-flush.ts';
import { consoleTail } from './console-log.ts';
import { decide, type MachineView, type Situation, type Step } from './decide.ts';
import { DiskState, InstanceGoneError } from './disk-state.ts';
import { reasonFor } from './failure-reasons.ts';
import { FencedError, flushMachine, settleFlush } from './flush-machine.ts';
import { awaitGuest, powerOffGuest, rebootGuest } from './guest-steps.ts';
import { KeyPusher } from './key-pusher.ts';
import { launchMachine, vmOwner } from './launch-machine.ts';
import { Machine } from './machine.ts';
import { readRecord, removeRecord, type VmFolder, type VmRecord, vmFolder } from './record.ts';
import { Reporter } from './reporter.ts';

export class VmRunner {
  readonly instance_id: InstanceId;
  readonly #context: HostContext;
  readonly #folder: VmFolder;
  readonly #disk: DiskState;
  readonly #reporter: Reporter;
  readonly #keys: KeyPusher;
  readonly #auto: AutoFlush;
  readonly #closing = new AbortController();
  /** undefined until the control plane has said something. */
  #assignment: Assignment | null | undefined = undefined;
  #machine: Machine | null = null;
  #last: VmRecord | null = null;
  #ended: string | null = null;
  /** Whether the overlay holds writes beyond the head while no machine has it; null until it was looked at. */
  #unsaved: boolean | null = null;
  #recovered: Reason | null = null;
  #panicked = false;
  #flushed: FlushId | null = null;
  #step: { readonly name: Step; readonly abort: AbortController } | null = null;
  #wake: () => void = () => undefined;
  #dirty = true;

  constructor(context: HostContext, instance_id: InstanceId) {
    this.instance_id = instance_id;
    this.#context = { ...context, log: context.log.child({ instance_id }) };
    this.#folder = vmFolder(context.paths.vms, instance_id);
    this.#disk = new DiskState(this.#context, instance_id);
    this.#reporter = new Reporter(this.#context, this.#closing.signal);
    this.#keys = new KeyPusher(this.#context.log);
    this.#auto = new AutoFlush(() => this.#changed());
  }

  /** Takes what the control plane says now; null when it says nothing of this instance any more. */
  assign(assignment: Assignment | null): void {
    const before = this.#assignment;
    this.#assignment = assignment;
    if (assignment?.vm_id !== before?.vm_id) {
      this.#ended = null;
      this.#unsaved = null;
    }
    const changed =
      assignment?.desired !== before?.desired ||
      assignment?.force !== before?.force ||
      assignment?.vm_id !== before?.vm_id;
    if (changed && this.#step && isInterruptible(this.#step.name, assignment)) {
      this.#step.abort.abort(new Error('something else is wanted now'));
    }
    if (assignment) this.#keys.want(assignment.authorized_keys);
    this.#auto.configure(assignment?.desired === 'running' ? assignment.spec.auto_flush_seconds : null);
    this.#changed();
  }

  /** Written by the guest and not durable; null when unknown or no machine runs. */
  async dirtyBytes(): Promise<number | null> {
    const machine = this.#machine;
    if (!machine || machine.gone || machine.view === 'booting') return null;
    const bytes = await machine.dirtyBytes().catch(() => null);
    this.#auto.observe(bytes);
    return bytes;
  }

  /** Runs until nothing is left of the instance here, or until `close`. */
  async run(): Promise<void> {
    await this.#adopt();
    for (let failures = 0; !this.#closing.signal.aborted; ) {
      this.#dirty = false;
      if (this.#assignment && !this.#machine && this.#unsaved === null) {
        await this.#retryingWhileAway(() => this.#lookForUnsaved());
      }
      const name = this.#assignment === undefined ? 'nothing' : decide(this.#situation());
      if (name === 'nothing') {
        if (this.#isOver()) break;
        await this.#idle();
        continue;
      }
      const abort = new AbortController();
      this.#step = { name, abort };
      try {
        await this.#take(name, AbortSignal.any([abort.signal, this.#closing.signal]));
        failures = 0;
      } catch (error) {
        if (abort.signal.aborted || this.#closing.signal.aborted) continue;
        this.#context.log.warn({ err: error, step: name }, 'a step failed');
        await pause(
          backoffMs(failures++, 200, 10_000),
          AbortSignal.any([abort.signal, this.#closing.signal]),
        );
      } finally {
        this.#step = null;
      }
    }
    this.#auto.close();
    this.#machine?.release();
  }

  /** Lets go of everything; the VM runs on, to be adopted. */
  close(): void {
    this.#closing.abort();
    this.#changed();
  }

  #changed(): void {
    this.#dirty = true;
    this.#wake();
  }

  #idle(): Promise<void> {
    if (this.#dirty) return Promise.resolve();
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #isOver(): boolean {
    if (this.#machine || this.#dirty || this.#assignment === undefined) return false;
    const wanted = this.#assignment;
    const over = wanted?.desired === 'stopped' || wanted?.desired === 'deleted';
    return wanted === null || (over && this.#ended === wanted.vm_id);
  }

  #situation(): Situation {
    const assignment = this.#assignment;
    const vm_id = assignment?.vm_id ?? null;
    return {
      desired: assignment?.desired ?? 'unassigned',
      machine: this.#view(),
      launched: this.#last?.vm_id === vm_id && vm_id !== null,
      unsaved: this.#unsaved === true,
      ended: vm_id !== null && this.#ended === vm_id,
      reboots_wanted: assignment?.reboots ?? 0,
      reboots_done: this.#machine?.record.reboots_done ?? 0,
      flush_wanted: this.#flushWanted(),
    };
  }

  /** A caller waits for a flush that was not begun, or the automatic one is due. */
  #flushWanted(): boolean {
    const flush_id = this.#assignment?.flush_id ?? null;
    return flush_id === null ? this.#auto.due : flush_id !== this.#flushed;
  }

  #view(): MachineView {
    const machine = this.#machine;
    if (!machine || machine.gone || machine.panicked) return 'none';
    if (this.#assignment && machine.record.vm_id !== this.#assignment.vm_id) return 'stale';
    return machine.view;
  }

  async #take(step: Step, signal: AbortSignal): Promise<void> {
    if (this.#machine?.gone || this.#machine?.panicked) {
      this.#panicked = this.#machine.panicked;
      await this.#endMachine();
    }
    switch (step) {
      case 'start':
        return this.#start(signal);
      case 'await_guest':
        return this.#awaitGuest(signal);
      case 'reboot':
        return this.#reboot(signal);
      case 'flush':
        return this.#flush(signal);
      case 'power_off':
        return powerOffGuest(this.#running, this.#current.force, signal);
      case 'save':
        return this.#save(signal);
      case 'save_offline':
        return this.#saveOffline(signal);
      case 'end_machine':
        return this.#endMachine();
      case 'remove':
        return this.#remove();
      case 'say_powered_off':
        return this.#say({ kind: 'powered_off' });
      case 'say_stopped':
        return this.#sayStopped();
      case 'say_died':
        return this.#end(this.#deathReason());
      case 'nothing':
        return;
    }
  }

  get #current(): Assignment {
    return present(this.#assignment, 'assignment');
  }
  get #running(): Machine {
    return present(this.#machine, 'machine');
  }

  // Steps ------------------------------------------------------------------------------------------------

  async #start(signal: AbortSignal): Promise<void> {
    const assignment = this.#current;
    try {
      await this.#launch(assignment, signal, true);
    } catch (error) {
      await this.#startFailed(error, signal);
    }
  }

  async #launch(assignment: Assignment, signal: AbortSignal, run: boolean): Promise<void> {
    assert(this.#machine === null, 'no machine has the disk');
    const changed = () => this.#changed();
    const launched = await launchMachine(
      { context: this.#context, assignment, disk: this.#disk, changed, signal },
      { run },
    );
    this.#machine = launched.machine;
    this.#last = launched.machine.record;
    this.#recovered = launched.recovered;
    this.#panicked = false;
  }

  /** A failed start is over, unless it failed only because the control plane was away or something else is wanted. */
  async #startFailed(error: unknown, signal: AbortSignal): Promise<void> {
    this.#unsaved = null;
    const reason = reasonFor(error, 'start_failed');
    if (signal.aborted || reason.code === 'control_plane_away') throw error;
    this.#context.log.error({ err: error }, 'the VM could not be started');
    await this.#end(reason);
  }

  async #awaitGuest(signal: AbortSignal): Promise<void> {
    const machine = this.#running;
    try {
      const found = await awaitGuest(machine, this.#keys, signal);
      if (found === null) return;
      this.#keys.follow(machine);
      await this.#say({
        kind: 'running',
        reboots: machine.record.reboots_done,
        ...found,
        recovered: this.#recovered,
      });
      this.#recovered = null;
    } catch (error) {
      if (signal.aborted) return;
      const reason = reasonFor(error, 'boot_timeout');
      const said = consoleTail(this.#folder.console_log);
      await this.#endMachine();
      await this.#end({ ...reason, message: `The guest did not come up: ${reason.message} ${said}`.trim() });
    }
  }

  async #reboot(signal: AbortSignal): Promise<void> {
    const machine = this.#running;
    const { reboots } = this.#current;
    if (!(await rebootGuest(machine, signal))) return;
    await machine.update({ reboots_done: reboots });
    this.#last = machine.record;
  }

  async #flush(signal: AbortSignal): Promise<void> {
    const flush_id = this.#current.flush_id;
    this.#auto.began();
    const work = () => this.#flushNow('freeze', signal);
    if (flush_id === null) {
      await work().catch(async (error: unknown) => {
        if (error instanceof FencedError) throw error;
        this.#context.log.warn(
          { err: error },
          'the automatic flush failed; it is tried again at its next time',
        );
      });
      return;
    }
    await this.#answerFlush(flush_id, work);
  }

  /** Serves a flush that callers wait for: what comes of it is told, whatever it is. */
  async #answerFlush(flush_id: FlushId, work: () => Promise<FlushReceipt>): Promise<void> {
    await this.#reporter.flush({ flush_id, state: 'running' });
    this.#flushed = flush_id;
    try {
      const receipt = await work();
      await this.#reporter.flush({ flush_id, state: 'done', receipt });
    } catch (error) {
      await this.#reporter.flush({ flush_id, state: 'failed', error: reasonFor(error, 'flush_failed') });
      if (error instanceof FencedError) throw error;
      this.#context.log.warn({ err: error }, 'a flush failed');
    }
  }

  async #flushNow(quiesce: 'freeze' | 'offline' | 'crash', signal: AbortSignal): Promise<FlushReceipt> {
    const machine = this.#running;
    const owner = vmOwner(this.#context, this.#current.spec.ssh_port);
    try {
      return await flushMachine({
        context: this.#context,
        machine,
        disk: this.#disk,
        owner,
        quiesce,
        signal,
      });
    } catch (error) {
      if (error instanceof FencedError) await this.#fenced(error);
      throw error;
    }
  }

  /** Another placement has the disk: what this machine wrote since its last commit is void. */
  async #fenced(error: FencedError): Promise<void> {
    this.#context.log.error({ err: error }, 'fenced: the VM is ended');
    await this.#endMachine();
    await this.#end({ code: 'fenced', message: `The disk has moved on without this VM: ${error.message}.` });
  }

  /** The final flush, tried until it succeeds, and the machine's end: only then is `stopped` true. */
  async #save(signal: AbortSignal): Promise<void> {
    const machine = this.#running;
    try {
      await this.#flushNow(machine.cleanly_off ? 'offline' : 'crash', signal);
    } catch (error) {
      if (!(error instanceof FencedError) && !signal.aborted && !machine.gone) {
        const { message } = reasonFor(error, 'flush_failed');
        await this.#say({
          kind: 'flush_pending',
          reason: { code: 'flush_pending', message: `The final flush waits: ${message}` },
        });
      }
      throw error;
    }
    await this.#endMachine();
    await this.#disk.vouch(this.#current.epoch, true);
    this.#unsaved = false;
    await this.#sayStopped();
  }

  /** Saves what a machine that died has left in its overlay: its disk is opened without running the guest. */
  async #saveOffline(signal: AbortSignal): Promise<void> {
    const assignment = this.#current;
    const work = async () => {
      if (!this.#unsaved) return this.#nothingToSave();
      await this.#launch(assignment, signal, false);
      try {
        const receipt = await this.#flushNow('crash', signal);
        await this.#endMachine();
        await this.#disk.vouch(assignment.epoch, true);
        this.#unsaved = false;
        return receipt;
      } finally {
        if (this.#machine) await this.#endMachine();
      }
    };
    if (assignment.flush_id !== null && assignment.flush_id !== this.#flushed) {
      return this.#answerFlush(assignment.flush_id, work);
    }
    try {
      await work();
    } catch (error) {
      const { message } = reasonFor(error, 'flush_failed');
      await this.#say({
        kind: 'flush_pending',
        reason: { code: 'flush_pending', message: `The disk could not be saved yet: ${message}` },
      });
      throw error;
    }
  }

  async #nothingToSave(): Promise<FlushReceipt> {
    const { generation, durable_at } = await this.#disk.refresh();
    return {
      generation,
      durable_at,
      dirty_bytes: 0,
      uploaded_bytes: 0,
      segments: 0,
      duration_ms: 0,
      consistency: 'crash',
    };
  }

  async #endMachine(): Promise<void> {
    const machine = this.#machine;
    if (!machine) return;
    this.#keys.follow(null);
    await machine.end();
    this.#machine = null;
    this.#unsaved = null;
    const problem = removeLimits(this.#context.cgroups, this.instance_id);
    if (problem !== null) this.#context.log.debug({ problem }, 'a control group stays');
  }

  async #remove(): Promise<void> {
    const { vm_id } = this.#current;
    await removeOverlay(this.#context.paths.overlays, this.instance_id);
    await rm(this.#folder.folder, { recursive: true, force: true });
    await this.#say({ kind: 'deleted' });
    this.#last = null;
    this.#ended = vm_id;
    this.#assignment = null;
    this.#context.log.info('removed from this host');
  }

  // What is said -----------------------------------------------------------------------------------------

  async #say(observed: Observation): Promise<void> {
    const { vm_id, epoch } = this.#current;
    const accepted = await this.#reporter.report({ vm_id, epoch, observed });
    if (!accepted && this.#machine) {
      this.#context.log.error({ observed: observed.kind }, 'fenced: the VM is ended');
      await this.#endMachine();
    }
    if (!accepted) this.#ended = vm_id;
  }

  async #sayStopped(): Promise<void> {
    const { vm_id } = this.#current;
    await this.#say({ kind: 'stopped' });
    this.#ended = vm_id;
    await removeRecord(this.#folder);
    this.#last = null;
  }

  async #end(reason: Reason): Promise<void> {
    const { vm_id } = this.#current;
    await this.#say({ kind: 'failed', reason });
    this.#ended = vm_id;
  }

  #deathReason(): Reason {
    const said = consoleTail(this.#folder.console_log);
    return this.#panicked
      ? { code: 'guest_panicked', message: `The guest's kernel panicked. ${said}`.trim() }
      : {
          code: 'vm_died',
          message: 'The VM process ended by itself; what it had written is kept on its host.',
        };
  }

  // Adoption ---------------------------------------------------------------------------------------------

  /** Finds what an earlier agent left: a machine to go on with, or its overlay. */
  async #adopt(): Promise<void> {
    const record = await readRecord(this.#folder);
    this.#last = record;
    const changed = () => this.#changed();
    const machine =
      record && (await Machine.adopt({ folder: this.#folder, record, log: this.#context.log, changed }));
    if (machine && !machine.record.released) {
      this.#context.log.info('a launch was under way; it begins again');
      await machine.end();
      await removeRecord(this.#folder);
      this.#last = null;
    } else if (machine) {
      this.#machine = machine;
      this.#context.log.info({ vm_id: machine.record.vm_id, pid: machine.record.identity.pid }, 'VM adopted');
      await this.#retryingWhileAway(() => settleFlush(machine, this.#disk));
    }
  }

  async #lookForUnsaved(): Promise<void> {
    const { epoch } = this.#current;
    try {
      await this.#disk.refresh();
      this.#unsaved = (await this.#disk.overlayState(epoch)) === 'unsaved';
    } catch (error) {
      if (!(error instanceof InstanceGoneError)) throw error;
      this.#unsaved = false;
    }
  }

  async #retryingWhileAway(work: () => Promise<void>): Promise<void> {
    for (let attempt = 0; !this.#closing.signal.aborted; attempt++) {
      try {
        return await work();
      } catch (error) {
        if (this.#machine?.gone) return;
        this.#context.log.warn({ reason: messageOf(error) }, 'waiting to look at the disk');
        await pause(backoffMs(attempt, 200, 3_000), this.#closing.signal);
      }
    }
  }
}

/** Whether a step that is under way is given up for what is wanted now. */
function isInterruptible(step: Step, wanted: Assignment | null): boolean {
  if (step === 'flush' || step === 'save' || step === 'save_offline')
    return wanted?.desired === 'deleted' || wanted === null;
  return step !== 'remove' && step !== 'end_machine';
}
