/**
 * The one owner of an instance's VM on this host. It looks at what is wanted and what is there, takes one step
 * (decide.ts), and looks again; steps never overlap. Keys are pushed beside the steps, because they must not wait
 * for a long flush. A step is given up when what it serves is no longer wanted; a flush is not, because its caller waits.
 */
import type { Assignment, Observation, Reason } from '../../agent-api/types.ts';
import { present } from '../../lib/assert.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import type { InstanceId } from '../../lib/ids.ts';
import { retryWithBackoff } from '../../lib/retry.ts';
import { Signal } from '../../lib/signal.ts';
import { AutoFlush } from '../flush/auto-flush.ts';
import type { HostContext } from '../host-context.ts';
import { KeyPusher } from '../keys/key-pusher.ts';
import { tellLogins } from '../keys/login-watch.ts';
import { LeaseOverError } from '../lease/host-lease.ts';
import { reasonFor } from '../machine/failure-reasons.ts';
import type { Machine } from '../machine/machine.ts';
import { type VmFolder, vmFolder } from '../machine/record.ts';
import { powerOffGuest, rebootGuest } from '../start/await-guest.ts';
import { decide, isInterruptible, type Situation, type Step } from './decide.ts';
import { DiskSaver } from './disk-saver.ts';
import { GuestReadiness } from './guest-readiness.ts';
import { GuestReports } from './guest-reports.ts';
import { LocalVm } from './local-vm.ts';
import { Reporter } from './reporter.ts';
import { Suspension } from './suspension.ts';

/** Longer than a guest that is well takes to answer. */
const SILENT_MS = 20_000;
/** After the first boot; its first caller is let in before. */
const FIRST_FLUSH_MS = 2_000;

export class VmRunner {
  readonly instance_id: InstanceId;
  readonly #context: HostContext;
  readonly #folder: VmFolder;
  readonly #held: LocalVm;
  readonly #reporter: Reporter;
  readonly #keys: KeyPusher;
  readonly #auto: AutoFlush;
  readonly #saver: DiskSaver;
  readonly #suspension: Suspension;
  readonly #arrival: GuestReadiness;
  readonly #said = new GuestReports((observed) => this.#say(observed));
  readonly #closing = new AbortController();
  /** undefined until the control plane has said something. */
  #assignment: Assignment | null | undefined = undefined;
  /** The VM whose end was said; a failed one may still be saved by a stop, a suspended one is to be said stopped. */
  #ended: { readonly vm_id: string; readonly how: 'stopped' | 'suspended' | 'failed' } | null = null;
  /** The machine that has not answered yet since it was last waited for. */
  #silent: Machine | null = null;
  #step: { readonly name: Step; readonly of: Assignment | null; readonly abort: AbortController } | null =
    null;
  readonly #changed = new Signal();

  constructor(context: HostContext, instance_id: InstanceId) {
    this.instance_id = instance_id;
    this.#context = { ...context, log: context.log.child({ instance_id }) };
    this.#folder = vmFolder(context.paths.vms, instance_id);
    this.#held = new LocalVm(this.#context, instance_id, this.#folder, this.#changed.notify);
    this.#reporter = new Reporter(this.#context, this.#closing.signal);
    this.#keys = new KeyPusher(this.#context.log, ({ record: { vm_id, epoch } }, applied_keys) =>
      this.#reporter.keys({ vm_id, epoch, applied_keys }),
    );
    this.#auto = new AutoFlush(this.#changed.notify);
    const parts = {
      held: this.#held,
      reporter: this.#reporter,
      endMachine: () => this.#endMachine(),
      say: (observed: Observation) => this.#say(observed),
      sayFailed: (reason: Reason) => this.#sayFailed(reason),
    };
    this.#saver = new DiskSaver({ ...parts, log: this.#context.log });
    this.#suspension = new Suspension({ ...parts, context: this.#context, keys: this.#keys });
    this.#arrival = new GuestReadiness({
      ...parts,
      context: this.#context,
      keys: this.#keys,
      folder: this.#folder,
    });
  }

  /** Takes what the control plane says now; null when it says nothing of this instance any more. */
  assign(assignment: Assignment | null): void {
    const before = this.#assignment;
    this.#assignment = assignment;
    if (assignment?.vm_id !== before?.vm_id) {
      this.#ended = null;
      this.#held.lookAgain();
    }
    const otherwise =
      assignment?.desired !== before?.desired ||
      assignment?.force !== before?.force ||
      assignment?.vm_id !== before?.vm_id;
    if (otherwise && this.#step && isInterruptible(this.#step.name, assignment?.desired)) {
      this.#step.abort.abort(new Error('something else is wanted now'));
    }
    if (assignment) this.#keys.want(assignment.authorized_keys);
    this.#auto.configure(assignment?.desired === 'running' ? assignment.spec.auto_flush_seconds : null);
    this.#changed.notify();
  }

  /** Written by the guest and not durable, bytes: at most so many after a killed machine. null: unknown. */
  async dirtyBytes(): Promise<number | null> {
    const { machine, unsaved } = this.#held;
    if (!machine) return unsaved === false ? 0 : unsaved && this.#held.overlayBytes();
    if (machine.gone || (machine.view === 'booting' && !machine.is_to_be_kept)) return null;
    if (machine.record.full_compare) {
      this.#auto.observe(Number.POSITIVE_INFINITY);
      return this.#held.overlayBytes();
    }
    const bytes = await machine.dirtyBytes().catch(() => null);
    this.#auto.observe(bytes);
    return bytes;
  }

  /** The guest answers, and no step that uses its agent is under way. */
  get isQuiet(): boolean {
    const machine = this.machineOf();
    if (machine?.view !== 'up' || this.#step !== null) return false;
    return !machine.record.frozen && !machine.agent.maybe_frozen;
  }

  /** The machine (of this boot), whatever its guest does; null when there is none, or no more. */
  machineOf(vm_id?: string): Machine | null {
    const { machine } = this.#held;
    if (!machine || machine.gone) return null;
    return vm_id === undefined || machine.record.vm_id === vm_id ? machine : null;
  }

  /** Called about once a minute. */
  upkeep(): void {
    this.#held.boundLog();
    void tellLogins(this.#held.machine, this.#context.client);
  }

  /** Runs until nothing is left to do for the instance here, or until `close`. */
  async run(): Promise<void> {
    await this.#insist(() => this.#held.adopt((work) => this.#insist(work)));
    for (let failures = 0; !this.#closing.signal.aborted; ) {
      const since = this.#changed.count;
      const name = await this.#next();
      if (name === 'nothing') {
        if (this.#changed.count === since && this.#isOver()) break;
        await this.#changed.wait({ since });
        continue;
      }
      const abort = new AbortController();
      const signal = AbortSignal.any([abort.signal, this.#closing.signal]);
      this.#step = { name, of: this.#assignment ?? null, abort };
      try {
        await this.#context.lease.whenHeld(signal);
        if (!signal.aborted) await this.#take(name, signal);
        failures = 0;
      } catch (error) {
        if (signal.aborted) continue;
        this.#context.log.warn({ err: error, step: name }, 'a step failed');
        await pause(backoffMs(failures++, 200, 10_000), signal);
      } finally {
        this.#step = null;
      }
    }
    this.#auto.close();
    void this.#keys.close();
    this.#held.release();
  }

  /** Lets go of everything; the VM runs on, to be adopted. */
  close(): void {
    this.#closing.abort(new Error('the agent is closing'));
    this.#changed.notify();
  }

  #isOver(): boolean {
    const wanted = this.#assignment;
    if (this.#held.machine || wanted === undefined) return false;
    const over = wanted !== null && ['stopped', 'suspended', 'deleted'].includes(wanted.desired);
    return wanted === null || (over && this.#hasEnded(wanted));
  }

  #hasEnded({ vm_id, desired }: Assignment): boolean {
    if (this.#ended?.vm_id !== vm_id) return false;
    return desired !== 'stopped' || this.#ended.how === 'stopped';
  }

  async #next(): Promise<Step> {
    if (this.#assignment === undefined) return 'nothing';
    // Only then can be looked at what it has left in its overlay.
    if (this.#held.isOver) return 'end_machine';
    if (this.#assignment && !this.#held.machine && this.#held.unsaved === null) {
      const assignment = this.#assignment;
      await this.#insist(() => this.#held.lookForUnsaved(assignment));
    }
    return decide(this.#situation());
  }

  #situation(): Situation {
    const assignment = this.#assignment ?? null;
    const vm_id = assignment?.vm_id ?? null;
    return {
      desired: assignment?.desired ?? 'unassigned',
      machine: this.#held.view(vm_id),
      launched: this.#held.wasLaunched(vm_id),
      unsaved: this.#held.unsaved === true,
      saved: this.#held.savedMemory(vm_id) !== null,
      standing: this.#held.standing,
      silent: this.#silent?.is_to_be_kept === true && this.#silent === this.#held.machine,
      ended: assignment !== null && this.#hasEnded(assignment),
      reboots_wanted: assignment?.reboots ?? 0,
      reboots_done: this.#held.machine?.record.reboots_done ?? 0,
      flush_asked: this.#saver.isAsked(assignment),
      flush_due: this.#auto.due,
      trouble_unsaid: this.#said.isTroubleUnsaid(this.#held.machine),
    };
  }

  async #take(step: Step, signal: AbortSignal): Promise<void> {
    if (this.#held.isOver) await this.#endMachine();
    switch (step) {
      case 'start':
        return this.#start(signal);
      case 'await_guest':
        return this.#awaitGuest(signal);
      case 'reboot':
        return this.#reboot(signal);
      case 'flush':
        return this.#flush(signal);
      case 'suspend':
        return this.#suspend(signal);
      case 'run_on':
        return this.#held.runOn();
      case 'say_suspended':
        return this.#saySuspended();
      case 'power_off':
        return powerOffGuest(this.#held.running, this.#context.client, this.#current.force, signal);
      case 'save':
        return this.#save(signal);
      case 'save_offline':
        return this.#saver.saveOffline(this.#current, signal);
      case 'end_machine':
        return this.#endMachine();
      case 'remove':
        return this.#remove();
      case 'say_trouble':
        return this.#said.sayTrouble(this.#held.running);
      case 'say_powered_off':
        return this.#sayPoweredOff();
      case 'say_stopped':
        return this.#sayStopped();
      case 'say_died':
        return this.#arrival.sayDied();
      case 'nothing':
        return;
    }
  }

  /** What the step is taken for: what it finds is said of that boot, though another may be wanted by then. */
  get #current(): Assignment {
    return present(this.#step?.of, 'assignment');
  }
  /** Over when it fails, unless only the control plane was away or something else is wanted. */
  async #start(signal: AbortSignal): Promise<void> {
    try {
      await this.#held.launch(this.#current, signal, { run: true });
    } catch (error) {
      const reason = reasonFor(error, 'start_failed');
      const again = reason.code === 'control_plane_away' || error instanceof LeaseOverError;
      if (signal.aborted || again) throw error;
      this.#context.log.error({ err: error }, 'the VM could not be started');
      await this.#sayFailed(reason);
    }
  }

  async #awaitGuest(signal: AbortSignal): Promise<void> {
    const machine = this.#held.running;
    await this.#said.sayResets(machine);
    const { host_key_new } = this.#current;
    await this.#keys.rest();
    this.#silent = machine;
    const found = await this.#arrival.await(this.#current, machine, this.#patience(machine, signal));
    if (found === null) return;
    this.#silent = null;
    const { recovered, disk } = this.#held;
    await this.#say({ kind: 'running', reboots: machine.record.reboots_done, ...found, recovered });
    this.#said.noteRunning();
    if (!machine.gone) this.#keys.follow(machine);
    machine.lazy?.booted();
    // The guest has just made its host key, or may have (a fork's): it must not depend on this host for longer than it takes.
    if (disk.isUnsavedYet || host_key_new) this.#auto.hurry(FIRST_FLUSH_MS);
    await this.#held.saidToRun();
  }

  /** One that an earlier agent left, and that is silent, is asked again and again: what else is wanted is done in between. */
  #patience(machine: Machine, signal: AbortSignal): AbortSignal {
    if (!machine.is_to_be_kept || this.#current.user_data) return signal;
    return AbortSignal.any([signal, AbortSignal.timeout(SILENT_MS)]);
  }

  async #reboot(signal: AbortSignal): Promise<void> {
    const machine = this.#held.running;
    const { reboots } = this.#current;
    await tellLogins(this.#held.machine, this.#context.client);
    if (!(await rebootGuest(machine, signal))) return;
    // Said first: an agent that ends in between reboots the guest again, and no reset is left unsaid.
    await this.#said.sayResets(machine);
    if (!machine.gone) await machine.update({ reboots_done: reboots });
  }

  async #flush(signal: AbortSignal): Promise<void> {
    this.#auto.began();
    this.#auto.ended(await this.#saver.flush(this.#current, signal));
  }

  async #save(signal: AbortSignal): Promise<void> {
    await this.#saver.save(this.#current, signal);
    await this.#sayStopped();
  }

  async #suspend(signal: AbortSignal): Promise<void> {
    const assignment = this.#current;
    const machine = this.#held.running;
    await this.#keys.rest();
    if (await this.#suspension.attempt(assignment, { signal, closing: this.#closing.signal })) return;
    if (!machine.gone) this.#keys.follow(machine);
    if (!signal.aborted) this.#wantInstead(assignment, 'running');
  }

  async #saySuspended(): Promise<void> {
    const assignment = this.#current;
    if (await this.#suspension.say(assignment)) {
      this.#ended = { vm_id: assignment.vm_id, how: 'suspended' };
      await this.#held.forget();
      return;
    }
    const { machine } = this.#held;
    if (machine && !machine.gone) this.#keys.follow(machine);
    if (assignment.desired === 'suspended') this.#wantInstead(assignment, 'running');
  }

  #endMachine(): Promise<void> {
    void this.#keys.rest();
    return this.#held.end();
  }

  async #remove(): Promise<void> {
    const { vm_id } = this.#current;
    await this.#held.remove();
    await this.#say({ kind: 'deleted' });
    this.#ended = { vm_id, how: 'stopped' };
    this.#assignment = null;
    this.#context.log.info('removed from this host');
  }

  async #say(observed: Observation): Promise<void> {
    const { vm_id, epoch } = this.#current;
    if (await this.#reporter.report({ vm_id, epoch, observed })) return;
    if (this.#held.machine) this.#context.log.error({ observed: observed.kind }, 'fenced: the VM is ended');
    await this.#endMachine();
    this.#ended = { vm_id, how: 'stopped' };
  }

  /** From here on a stop is wanted, whether or not the control plane's word of it has arrived. */
  async #sayPoweredOff(): Promise<void> {
    const assignment = this.#current;
    await this.#say({ kind: 'powered_off' });
    this.#wantInstead(assignment, 'stopped');
  }

  #wantInstead(assignment: Assignment, desired: Assignment['desired']): void {
    if (this.#assignment === assignment) this.#assignment = { ...assignment, desired };
  }

  async #sayStopped(): Promise<void> {
    const { recovered } = this.#held;
    await this.#say(recovered ? { kind: 'stopped', recovered } : { kind: 'stopped' });
    this.#ended = { vm_id: this.#current.vm_id, how: 'stopped' };
    await this.#held.forget();
  }

  async #sayFailed(reason: Reason): Promise<void> {
    const { vm_id } = this.#current;
    await this.#say({ kind: 'failed', reason });
    this.#ended = { vm_id, how: 'failed' };
  }

  #insist(work: () => Promise<void>): Promise<void> {
    const { log } = this.#context;
    return retryWithBackoff(work, {
      log,
      signal: this.#closing.signal,
      isOver: () => this.#held.machine?.gone === true,
    });
  }
}
