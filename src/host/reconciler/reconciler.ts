/**
 * The reconciler of one VM, and its only owner on this host.
 *
 *   assignment, machine event, due flush ──notify──▶ look ──nextStep()──▶ one step ──▶ look again … until all is done
 *
 * The states of the VM, and the steps between them:
 *   none ──start──▶ booting ──await_guest──▶ up ──suspend──▶ paused, memory durable ──report_suspended──▶ none
 *                      ▲────────reboot────────┤
 *                                             └──power_off──▶ off ──save──▶ none ──report_stopped──▶ ended
 *   (any) ──process dies──▶ none ──report_died──▶ failed ──save_offline──▶ ended    (any) ──end_machine, remove──▶ gone
 *
 * Steps never overlap; a failed step is retried with backoff. `next-step.ts` chooses the step, and says what interrupts
 * it. SSH keys are pushed beside the steps, because they must not wait for a long flush.
 */
import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { FileSystemUse } from '../../protocol/host-types.ts';
import type {
  Assignment,
  FlushFailure,
  FlushReport,
  KeysReport,
  Observation,
  Reason,
  Report,
  ReportResponse,
} from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { Signal } from '../../shared/concurrency.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { backoffMs, pause, retryWithBackoff } from '../../shared/retry.ts';
import { inWork, type TraceContext } from '../../shared/tracing.ts';
import { KeyPusher, linesWithEnvironment } from '../guest/authorized-keys.ts';
import { SecretPusher, sessionEnvironment } from '../guest/guest-secrets.ts';
import { rootFileSystemUse } from '../guest/guest-use.ts';
import { readHostKeys, reportLogins } from '../guest/sshd.ts';
import type { HostContext } from '../host-context.ts';
import type { GuestUp } from '../vm/await-guest.ts';
import { reasonFor } from '../vm/failure-reasons.ts';
import type { Machine } from '../vm/machine.ts';
import { vmFolder } from '../vm/record.ts';
import { isRetriedStep, NotResumedError } from '../vm/resume-machine.ts';
import { AutoFlush, Flushes, Suspension } from './flushes.ts';
import {
  DiskGrowth,
  GuestReadiness,
  GuestReports,
  powerOffGuest,
  rebootGuest,
  type StepContext,
} from './guest-steps.ts';
import { LocalVm } from './local-vm.ts';
import {
  type BootEnding,
  hasEnded,
  interrupts,
  isFinished,
  nextStep,
  type Situation,
  type Step,
} from './next-step.ts';

/** Longer than a healthy guest takes to answer. */
const SILENT_MS = 20_000;
/** After the first boot is reported, so that the flush does not delay its first login. */
const FIRST_FLUSH_MS = 2_000;

const SUSPENDED_AGAIN =
  'The VM could not be resumed and is suspended again; its memory and disk are as they were. Start it again, or stop it to boot from its disk.';

/** Reports observations to the control plane, and retries until it has answered. */
export class Reporter {
  readonly #context: Pick<HostContext, 'client' | 'log'>;
  readonly #closing: AbortSignal;

  readonly #beforeReport: () => Promise<void>;

  /** `beforeReport`: tells the control plane what an observation would end there. */
  constructor(
    context: Pick<HostContext, 'client' | 'log'>,
    closing: AbortSignal,
    beforeReport: () => Promise<void>,
  ) {
    this.#beforeReport = beforeReport;
    this.#context = context;
    this.#closing = closing;
  }

  /** `fenced`: the VM belongs to another placement. @throws the closing signal's reason */
  async report(report: Report): Promise<ReportResponse['outcome']> {
    const { outcome } = await this.#untilAnswered(async () => {
      await this.#beforeReport();
      return this.#context.client.report(report);
    });
    return outcome;
  }

  async suspended(report: Report): Promise<ReportResponse['outcome']> {
    return (await this.#untilAnswered(() => this.#context.client.report(report))).outcome;
  }

  async flush(report: FlushReport): Promise<void> {
    await this.#untilAnswered(() => this.#context.client.reportFlush(report));
  }

  async flushFailure(failure: FlushFailure): Promise<void> {
    await this.#untilAnswered(() => this.#context.client.reportFlushFailure(failure));
  }

  async keys(report: KeysReport): Promise<void> {
    await this.#untilAnswered(() => this.#context.client.reportKeys(report));
  }

  async #untilAnswered(send: () => Promise<ReportResponse>): Promise<ReportResponse> {
    for (let attempt = 0; ; attempt++) {
      this.#closing.throwIfAborted();
      try {
        return await send();
      } catch (error) {
        if (!(error instanceof ControlPlaneUnavailable)) throw error;
        if (attempt === 3) this.#context.log.warn('reports wait for the control plane');
        await pause(backoffMs(attempt, 100, 2_000), this.#closing);
      }
    }
  }
}

interface StepUnderWay {
  readonly name: Step;
  readonly abort: AbortController;
  /** For which it was decided. Reports of the step name this boot, even if another one is assigned meanwhile. */
  readonly assignment: Assignment | null;
}

export class Reconciler {
  readonly instance_id: InstanceId;
  readonly #context: HostContext;
  readonly #local: LocalVm;
  readonly #reporter: Reporter;
  readonly #keys: KeyPusher;
  readonly #secrets: SecretPusher;
  readonly #auto: AutoFlush;
  readonly #flushes: Flushes;
  readonly #suspension: Suspension;
  readonly #readiness: GuestReadiness;
  readonly #growth: DiskGrowth;
  readonly #guest_reports = new GuestReports(async (observed) => {
    await this.#report(observed);
  });
  readonly #changed = new Signal();
  readonly #closing = new AbortController();
  readonly #adopted = Promise.withResolvers<void>();
  /** undefined: the control plane has not answered yet. */
  #assignment: Assignment | null | undefined = undefined;
  #step: StepUnderWay | null = null;
  /** The boot whose end was reported. */
  #ended: BootEnding | null = null;
  /** The machine that is waited for, until its guest answers. */
  #awaited: Machine | null = null;
  /** A guest that had no host key when it was reported. */
  #keyless: { readonly of: Machine; readonly up: Omit<GuestUp, 'access_problem'> } | null = null;

  /** `reportEnds`: of execs, which a report of the VM may lose. */
  constructor(
    context: HostContext,
    instance_id: InstanceId,
    reportEnds: (closing: AbortSignal) => Promise<void> = () => Promise.resolve(),
  ) {
    this.instance_id = instance_id;
    this.#context = { ...context, log: context.log.child({ instance_id }) };
    const { signal: closing } = this.#closing;
    const folder = vmFolder(context.paths.vms, instance_id);
    this.#local = new LocalVm(this.#context, instance_id, folder, this.#changed.notify);
    this.#reporter = new Reporter(this.#context, closing, () => reportEnds(closing));
    this.#keys = new KeyPusher(this.#context.log, ({ record: { vm_id, epoch } }, applied_keys) =>
      this.#reporter.keys({ vm_id, epoch, applied_keys }),
    );
    this.#secrets = new SecretPusher(this.#context.log, () => (closing.aborted ? null : this.#local.machine));
    this.#auto = new AutoFlush(this.#changed.notify);
    const shared: StepContext = {
      ...{ context: this.#context, folder, local: this.#local, reporter: this.#reporter },
      ...{ keys: this.#keys, secrets: this.#secrets },
      endMachine: () => this.#endMachine(),
      report: async (observed) => {
        await this.#report(observed);
      },
      reportFailed: (reason) => this.#reportFailed(reason),
    };
    this.#flushes = new Flushes(shared);
    this.#suspension = new Suspension(shared);
    this.#readiness = new GuestReadiness(shared);
    this.#growth = new DiskGrowth(this.#context.log);
  }

  /** Takes the newest assignment; null: the instance is no longer assigned to this host. */
  assign(assigned: Assignment | null): void {
    const environment = sessionEnvironment(assigned?.secrets);
    const assignment = assigned && {
      ...assigned,
      authorized_keys: linesWithEnvironment(assigned.authorized_keys, environment),
    };
    const before = this.#assignment ?? null;
    this.#assignment = assignment;
    if (assignment?.vm_id !== before?.vm_id) {
      this.#ended = null;
      this.#local.lookAgain();
    }
    if (this.#step && interrupts(this.#step.name, before, assignment)) {
      this.#step.abort.abort(new Error('something else is wanted now'));
    }
    if (assignment) {
      this.#secrets.want({ environment, certificate: assignment.secrets_authority?.certificate ?? '' });
      this.#keys.want(assignment.authorized_keys);
    }
    this.#auto.configure(assignment?.desired === 'running' ? assignment.spec.auto_flush_seconds : null);
    this.#changed.notify();
  }

  /** Bytes that the guest wrote and that are not durable; an upper bound after a machine was killed. null: unknown. */
  async dirtyBytes(): Promise<number | null> {
    const { machine, unsaved } = this.#local;
    if (!machine) return unsaved === false ? 0 : unsaved && this.#local.overlayBytes();
    if (machine.gone || (machine.view === 'booting' && !machine.survives_silence)) return null;
    if (machine.record.full_compare) {
      this.#auto.observe(Number.POSITIVE_INFINITY);
      return this.#local.overlayBytes();
    }
    const bytes = await machine.dirtyBytes().catch(() => null);
    this.#auto.observe(bytes);
    return bytes;
  }

  /** The guest answers, and no step uses its agent. */
  get isQuiet(): boolean {
    const machine = this.machineOf();
    if (machine?.view !== 'up' || this.#step !== null) return false;
    return !machine.record.frozen && !machine.agent.maybe_frozen;
  }

  /** Resolves once the machine that an earlier agent has left is known, if there is one. */
  get adopted(): Promise<void> {
    return this.#adopted.promise;
  }

  /** The instance is no longer assigned to this host. */
  get isUnassigned(): boolean {
    return this.#assignment === null;
  }

  /** The machine, of boot `vm_id` if given; null when there is none or its process has ended. */
  machineOf(vm_id?: string): Machine | null {
    const { machine } = this.#local;
    if (!machine || machine.gone) return null;
    return vm_id === undefined || machine.record.vm_id === vm_id ? machine : null;
  }

  /** Called about once a minute. */
  upkeep(): void {
    this.#local.boundLog();
    void reportLogins(this.#local.machine, this.#context.client);
  }

  /** Runs until nothing is left to do for the instance on this host, or until `close`. */
  async run(): Promise<void> {
    await this.#retry(() => this.#local.adopt((work) => this.#retry(work))).finally(this.#adopted.resolve);
    for (let failures = 0; !this.#closing.signal.aborted; ) {
      const since = this.#changed.count;
      const name = await this.#next();
      if (name === 'nothing') {
        if (this.#changed.count === since && this.#isFinished()) break;
        await this.#changed.wait({ since });
        continue;
      }
      failures = (await this.#perform(name, failures)) ? 0 : failures + 1;
    }
    this.#auto.close();
    void this.#keys.close();
    this.#local.release();
  }

  /** Disconnects. The VM runs on, and the next agent adopts it. */
  close(): void {
    this.#closing.abort(new Error('the agent is closing'));
    this.#changed.notify();
  }

  /** False: the step failed, and the backoff of attempt `failures` has passed. */
  async #perform(name: Step, failures: number): Promise<boolean> {
    const abort = new AbortController();
    const signal = AbortSignal.any([abort.signal, this.#closing.signal]);
    const assignment = this.#assignment ?? null;
    this.#step = { name, abort, assignment };
    try {
      await this.#context.lease.whenHeld(signal);
      if (!signal.aborted) await this.#take(name, assignment, signal);
      return true;
    } catch {
      if (signal.aborted) return true;
      await pause(backoffMs(failures, 200, 10_000), signal);
      return false;
    } finally {
      this.#step = null;
    }
  }

  /** For the request that asked for it, if any. */
  #take(step: Step, assignment: Assignment | null, signal: AbortSignal): Promise<void> {
    const attributes = { 'berth.instance_id': this.instance_id, 'berth.vm_id': assignment?.vm_id };
    const context = contextOf(step, assignment);
    return inWork({ name: `agent ${step}`, attributes, context }, async () => {
      try {
        await this.#takeStep(step, signal);
      } catch (error) {
        if (!signal.aborted) this.#context.log.warn({ err: error, step }, 'a step failed');
        throw error;
      }
    });
  }

  async #next(): Promise<Step> {
    const assignment = this.#assignment;
    if (assignment === undefined) return 'nothing';
    // The overlay can be inspected only after the machine's end.
    if (this.#local.isOver) return 'end_machine';
    if (assignment && !this.#local.machine && this.#local.unsaved === null) {
      await this.#retry(() => this.#local.lookForUnsaved(assignment));
    }
    return nextStep(this.#situation());
  }

  #situation(): Situation {
    const local = this.#local;
    const assignment = this.#assignment ?? null;
    const vm_id = assignment?.vm_id ?? null;
    return {
      desired: assignment?.desired ?? 'unassigned',
      machine: local.view(vm_id),
      launched: local.wasLaunched(vm_id) || assignment?.guest_ran === true,
      unsaved: local.unsaved === true,
      saved: local.savedMemory(vm_id) !== null,
      suspend_abandoned: local.suspend_abandoned,
      silent: this.#isSilent,
      ended: assignment !== null && hasEnded(this.#ended, assignment),
      reboots_wanted: assignment?.reboots ?? 0,
      reboots_done: local.machine?.record.reboots_done ?? 0,
      flush_asked: this.#flushes.isAsked(assignment),
      flush_due: this.#auto.due,
      growth_wanted: this.#growth.isWanted(assignment, local.machine),
      problem_unreported: this.#guest_reports.hasUnreportedProblem(local.machine),
    };
  }

  #isFinished(): boolean {
    const assignment = this.#assignment;
    return assignment !== undefined && !this.#local.machine && isFinished(assignment, this.#ended);
  }

  /** The host knows earlier than the control plane what must follow: a guest that powered off is to be stopped, say. */
  #setDesired(assignment: Assignment, desired: Assignment['desired'] | null): void {
    if (this.#assignment !== assignment && desired !== null) return;
    this.#assignment = desired === null ? null : { ...assignment, desired };
  }

  #retry(work: () => Promise<void>): Promise<void> {
    const isOver = () => this.#local.machine?.gone === true;
    const { log } = this.#context;
    return retryWithBackoff(work, { what: 'repairing the VM', log, signal: this.#closing.signal, isOver });
  }

  /** An adopted guest that may serve users, and has not answered for a while. */
  get #isSilent(): boolean {
    return this.#awaited?.survives_silence === true && this.#awaited === this.#local.machine;
  }

  /** The assignment of the step under way. */
  get #current(): Assignment {
    return present(this.#step?.assignment, 'assignment');
  }

  async #takeStep(step: Step, signal: AbortSignal): Promise<void> {
    // The machine may have ended since the decision.
    if (this.#local.isOver) await this.#endMachine();
    switch (step) {
      case 'start':
        return this.#start(signal);
      case 'await_guest':
        return this.#awaitGuest(signal);
      case 'reboot':
        return this.#reboot(signal);
      case 'flush':
        return this.#flush(signal);
      case 'grow_disk':
        return this.#growDisk(signal);
      case 'suspend':
        return this.#suspend(signal);
      case 'cancel_suspend':
        return this.#local.cancelSuspend();
      case 'power_off':
        if (!this.#current.force) await this.#local.running.ports.drain(signal);
        return powerOffGuest(this.#local.running, this.#context.client, this.#current.force, signal);
      case 'save':
        return this.#save(signal);
      case 'save_offline':
        return this.#flushes.saveOffline(this.#current, signal);
      case 'end_machine':
        return this.#endMachine();
      case 'remove':
        return this.#remove();
      case 'report_problem':
        return this.#reportProblem(this.#local.running);
      case 'report_powered_off':
        return this.#reportPoweredOff();
      case 'report_suspended':
        return this.#reportSuspended();
      case 'report_stopped':
        return this.#reportStopped();
      case 'report_died':
        return this.#readiness.reportDeath(this.#current.vm_id);
      case 'nothing':
        return;
    }
  }

  /** A failed start ends the boot, unless the control plane or the lease was missing, or something else is wanted. */
  async #start(signal: AbortSignal): Promise<void> {
    try {
      await this.#local.launch(this.#current, signal, { run: true });
    } catch (error) {
      const reason = reasonFor(error, 'start_failed');
      if (signal.aborted || isRetriedStep(error)) throw error;
      this.#context.log.error({ err: error }, 'the VM could not be started');
      if (error instanceof NotResumedError) await this.#reportNotResumed(error);
      else await this.#reportFailed(reason);
    }
  }

  async #reportNotResumed({ message }: NotResumedError): Promise<void> {
    const { vm_id } = this.#current;
    await this.#report({
      kind: 'resume_failed',
      reason: { code: 'resume_failed', message: `${SUSPENDED_AGAIN} ${message}` },
    });
    this.#ended = { vm_id, how: 'suspended' };
  }

  async #awaitGuest(signal: AbortSignal): Promise<void> {
    const machine = this.#local.running;
    await this.#guest_reports.reportResets(machine);
    const { host_key_new } = this.#current;
    await this.#keys.pause();
    this.#awaited = machine;
    const found = await this.#readiness.await(this.#current, machine, {
      signal,
      patience: this.#patience(machine, signal),
    });
    if (found === null) return;
    this.#awaited = null;
    const { recovered, disk } = this.#local;
    const { access_problem, ...up } = found;
    const outcome = await this.#report({
      ...{ kind: 'running', reboots: machine.record.reboots_done, ...up, recovered },
      ...(access_problem ? { access_problem } : {}),
    });
    const { vm_id } = this.#current;
    if (access_problem)
      this.#context.log.warn({ vm_id, reason: access_problem }, 'nobody can log in to the guest');
    else this.#context.log.info({ vm_id }, 'the guest is ready');
    this.#guest_reports.noteRunning(recovered ? null : access_problem);
    this.#keyless = up.host_keys.length === 0 ? { of: machine, up } : null;
    if (!machine.gone) this.#keys.follow(machine);
    this.#secrets.look();
    machine.lazy?.booted();
    // The guest has just made its host key, or may have (a fork): make it durable soon, so that it outlives this host.
    if (disk.hasNoGeneration || host_key_new) this.#auto.hurry(FIRST_FLUSH_MS);
    if (outcome === 'accepted') await this.#local.noteReported();
  }

  async #reportProblem(machine: Machine): Promise<void> {
    await this.#guest_reports.reportProblem(machine);
    const keyless = this.#keyless;
    if (machine.problem !== null || keyless?.of !== machine) return;
    this.#keyless = null;
    // Its sshd was repaired, and has a host key now.
    const host_keys = await readHostKeys(machine.agent).catch(() => []);
    const { reboots_done: reboots } = machine.record;
    await this.#report({ kind: 'running', reboots, ...keyless.up, host_keys, recovered: null });
  }

  /** A silent guest that may serve users is asked again and again; other steps are taken in between. */
  #patience(machine: Machine, signal: AbortSignal): AbortSignal {
    if (!machine.survives_silence || this.#current.user_data) return signal;
    return AbortSignal.any([signal, AbortSignal.timeout(SILENT_MS)]);
  }

  async #reboot(signal: AbortSignal): Promise<void> {
    const machine = this.#local.running;
    const { reboots } = this.#current;
    await machine.ports.drain(signal);
    await reportLogins(machine, this.#context.client);
    if (!(await rebootGuest(machine, signal))) return;
    // Reported first: an agent that ends in between reboots the guest again, and no reset stays unreported.
    await this.#guest_reports.reportResets(machine);
    if (!machine.gone) await machine.update({ reboots_done: reboots });
  }

  async #flush(signal: AbortSignal): Promise<void> {
    this.#auto.began();
    this.#auto.ended(await this.#flushes.flush(this.#current, signal));
  }

  async #growDisk(signal: AbortSignal): Promise<void> {
    const { disk_bytes } = this.#current.spec;
    if (await this.#growth.attempt(this.#local.running, disk_bytes, signal))
      await this.#report({ kind: 'disk_grown', disk_bytes });
  }

  async #save(signal: AbortSignal): Promise<void> {
    await this.#flushes.save(this.#current, signal);
    await this.#reportStopped();
  }

  async #suspend(signal: AbortSignal): Promise<void> {
    const assignment = this.#current;
    const machine = this.#local.running;
    await this.#keys.pause();
    if (await this.#suspension.attempt(assignment, { signal, closing: this.#closing.signal })) return;
    if (!machine.gone) this.#keys.follow(machine);
    if (!signal.aborted) this.#setDesired(assignment, 'running');
  }

  async #reportSuspended(): Promise<void> {
    const assignment = this.#current;
    if (await this.#suspension.report(assignment)) {
      this.#ended = { vm_id: assignment.vm_id, how: 'suspended' };
      await this.#local.forget();
      return;
    }
    const { machine } = this.#local;
    if (machine && !machine.gone) this.#keys.follow(machine);
    if (assignment.desired === 'suspended') this.#setDesired(assignment, 'running');
  }

  #endMachine(): Promise<void> {
    void this.#keys.pause();
    return this.#local.end();
  }

  async #remove(): Promise<void> {
    const assignment = this.#current;
    await this.#local.remove();
    await this.#report({ kind: 'deleted' });
    this.#ended = { vm_id: assignment.vm_id, how: 'stopped' };
    this.#setDesired(assignment, null);
    this.#context.log.info('removed from this host');
  }

  /** A report that is fenced ends the machine: another placement has the instance. */
  async #report(observed: Observation): Promise<ReportResponse['outcome']> {
    const { vm_id, epoch } = this.#current;
    const outcome = await this.#reporter.report({ vm_id, epoch, observed });
    if (outcome !== 'fenced') return outcome;
    if (this.#local.machine) this.#context.log.error({ observed: observed.kind }, 'fenced: the VM is ended');
    await this.#endMachine();
    this.#ended = { vm_id, how: 'stopped' };
    return outcome;
  }

  /** A stop is wanted from here on, even if the control plane has not assigned it yet. */
  async #reportPoweredOff(): Promise<void> {
    const assignment = this.#current;
    await this.#report({ kind: 'powered_off' });
    this.#setDesired(assignment, 'stopped');
  }

  /** Names the head that has everything. The control plane fails the VM if there is none, or if it is not the head. */
  async #reportStopped(): Promise<void> {
    const assignment = this.#current;
    const { vm_id } = assignment;
    const { recovered, saved_by: commit_id } = this.#local;
    const outcome = await this.#report({ kind: 'stopped', commit_id, ...(recovered ? { recovered } : {}) });
    if (outcome === 'unwanted') {
      this.#context.log.error({ commit_id }, 'the VM has failed: its last writes are not saved');
      this.#ended = { vm_id, how: 'failed' };
      this.#local.lookAgain();
      this.#setDesired(assignment, 'failed');
      return;
    }
    this.#ended = { vm_id, how: 'stopped' };
    if (outcome === 'accepted') await this.#local.noteReported();
    await this.#local.forget();
  }

  async #reportFailed(reason: Reason): Promise<void> {
    const { vm_id } = this.#current;
    await this.#report({ kind: 'failed', reason, guest_ran: this.#local.mayHaveRun(vm_id) });
    this.#ended = { vm_id, how: 'failed' };
  }
}

/** The other steps follow from what happens on this host. */
const ASKED_FOR: ReadonlySet<Step> = new Set([
  ...(['start', 'await_guest', 'reboot', 'suspend', 'cancel_suspend', 'power_off', 'save'] as const),
  ...(['report_suspended', 'report_stopped'] as const),
]);

function contextOf(step: Step, assignment: Assignment | null): TraceContext | undefined {
  if (step === 'flush' || step === 'save_offline') return assignment?.flush_trace_context;
  return ASKED_FOR.has(step) ? assignment?.trace_context : undefined;
}

/** It starts a process in the guest, which may be busy. */
const ROOT_USE_MS = 2_000;

/** How full the guest's root file system is; null: unknown. A guest that is being flushed is not asked. */
export async function rootUse(runner: Reconciler): Promise<FileSystemUse | null> {
  const machine = runner.machineOf();
  if (!machine || !runner.isQuiet) return null;
  return rootFileSystemUse(machine.agent, { timeout_ms: ROOT_USE_MS }).catch(() => null);
}
