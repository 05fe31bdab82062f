/**
 * The reconciler of one VM, and its only owner on this host.
 *
 *   assignment, machine event, due flush ──notify──▶ look ──decide()──▶ one step ──▶ look again … until nothing is left to do
 *
 * The VM that the steps move:
 *
 *   none ──start──▶ booting ──await_guest──▶ up ──suspend──▶ paused, memory durable ──report_suspended──▶ none
 *                      ▲────────reboot────────┤
 *                                             └──power_off──▶ off ──save──▶ none ──report_stopped──▶ ended
 *   (any) ──process dies──▶ none ──report_died──▶ failed ──save_offline──▶ ended      (any) ──end_machine, remove──▶ gone
 *
 * Steps never overlap; a failed step is retried with backoff. `next-step.ts` chooses the step, and says what interrupts it. Keys
 * are pushed beside the steps, because they must not wait for a long flush.
 */
import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { FileSystemUse } from '../../protocol/host-types.ts';
import type {
  Assignment,
  FlushFailure,
  FlushReport,
  KeysReport,
  Report,
  ReportResponse,
} from '../../protocol/types.ts';
import { Signal } from '../../shared/concurrency.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { backoffMs, pause, retryWithBackoff } from '../../shared/retry.ts';
import { inWork, type TraceContext } from '../../shared/tracing.ts';
import { KeyPusher, linesWithEnvironment } from '../guest/authorized-keys.ts';
import { SecretPusher, sessionEnvironment } from '../guest/guest-secrets.ts';
import { rootFileSystemUse } from '../guest/guest-use.ts';
import { reportLogins } from '../guest/sshd.ts';
import type { HostContext } from '../host-context.ts';
import type { Machine } from '../vm/machine.ts';
import { vmFolder } from '../vm/record.ts';
import { AutoFlush } from './auto-flush.ts';
import { LocalVm } from './local-vm.ts';
import { decide, hasEnded, interrupts, isFinished, type Situation, type Step } from './next-step.ts';
import { VmSteps } from './vm-steps.ts';

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
}

export class VmRunner {
  readonly instance_id: InstanceId;
  readonly #context: HostContext;
  readonly #local: LocalVm;
  readonly #keys: KeyPusher;
  readonly #secrets: SecretPusher;
  readonly #auto: AutoFlush;
  readonly #steps: VmSteps;
  readonly #changed = new Signal();
  readonly #closing = new AbortController();
  readonly #adopted = Promise.withResolvers<void>();
  /** undefined: the control plane has not answered yet. */
  #assignment: Assignment | null | undefined = undefined;
  #step: StepUnderWay | null = null;

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
    const reporter = new Reporter(this.#context, closing, () => reportEnds(closing));
    this.#keys = new KeyPusher(this.#context.log, ({ record: { vm_id, epoch } }, applied_keys) =>
      reporter.keys({ vm_id, epoch, applied_keys }),
    );
    this.#secrets = new SecretPusher(this.#context.log, () => (closing.aborted ? null : this.#local.machine));
    this.#auto = new AutoFlush(this.#changed.notify);
    this.#steps = new VmSteps({
      ...{ context: this.#context, folder, local: this.#local, reporter, keys: this.#keys, auto: this.#auto },
      secrets: this.#secrets,
      closing,
      setDesired: (assignment, desired) => this.#setDesired(assignment, desired),
    });
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
      this.#steps.ended = null;
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
    this.#step = { name, abort };
    // Reports of this step name this boot, even if another one is assigned meanwhile.
    const assignment = this.#assignment ?? null;
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
        await this.#steps.take(step, assignment, signal);
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
    return decide(this.#situation());
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
      silent: this.#steps.isSilent,
      ended: assignment !== null && hasEnded(this.#steps.ended, assignment),
      reboots_wanted: assignment?.reboots ?? 0,
      reboots_done: local.machine?.record.reboots_done ?? 0,
      flush_asked: this.#steps.isFlushAsked(assignment),
      flush_due: this.#auto.due,
      growth_wanted: this.#steps.isGrowthWanted(assignment),
      trouble_unreported: this.#steps.hasUnreportedTrouble,
    };
  }

  #isFinished(): boolean {
    const assignment = this.#assignment;
    return assignment !== undefined && !this.#local.machine && isFinished(assignment, this.#steps.ended);
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
export async function rootUse(runner: VmRunner): Promise<FileSystemUse | null> {
  const machine = runner.machineOf();
  if (!machine || !runner.isQuiet) return null;
  return rootFileSystemUse(machine.agent, { timeout_ms: ROOT_USE_MS }).catch(() => null);
}
