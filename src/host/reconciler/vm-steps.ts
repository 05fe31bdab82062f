/**
 * The steps that a reconciler takes with its VM, each for the assignment that it was decided for. What a step finds is reported
 * for that boot. A step that throws is retried.
 */
import type { ControlPlaneClient } from '../../protocol/client.ts';
import type { Assignment, Observation, Reason, ReportResponse } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { messageOf } from '../../shared/errors.ts';
import type { VmId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import type { KeyPusher } from '../guest/authorized-keys.ts';
import type { SecretPusher } from '../guest/guest-secrets.ts';
import { growRoot } from '../guest/guest-use.ts';
import { readHostKeys, reportLogins } from '../guest/sshd.ts';
import type { HostContext } from '../host-context.ts';
import { awaitGuest, type GuestUp, giveUserData } from '../vm/await-guest.ts';
import { consoleTail } from '../vm/console-log.ts';
import { deathReason, reasonFor } from '../vm/failure-reasons.ts';
import { sizeOf } from '../vm/launch-machine.ts';
import type { Machine } from '../vm/machine.ts';
import type { VmFolder } from '../vm/record.ts';
import { isRetriedStep, NotResumedError } from '../vm/resume-machine.ts';
import type { AutoFlush } from './auto-flush.ts';
import { DiskSaver, Suspension } from './disk-saver.ts';
import type { LocalVm } from './local-vm.ts';
import type { Ending, Step } from './next-step.ts';
import type { Reporter } from './vm-runner.ts';

interface Attempt {
  readonly machine: Machine;
  readonly resets: number;
  readonly disk_bytes: number;
}

/**
 * Gives a running guest the new size of its disk, and grows its root file system: one attempt for each size and boot of the guest.
 * What fails happens at the guest's next boot, which grows the file system before anything else. Each part may be repeated, so a
 * successor of an agent that died in between begins again.
 */
class DiskGrowth {
  readonly #log: Log;
  #tried: Attempt | null = null;

  constructor(log: Log) {
    this.#log = log;
  }

  isWanted(assignment: Assignment | null, machine: Machine | null): boolean {
    if (!assignment?.disk_grows || !machine) return false;
    const { machine: of, resets, disk_bytes } = this.#tried ?? {};
    return of !== machine || resets !== machine.resets || disk_bytes !== assignment.spec.disk_bytes;
  }

  /** Whether the guest's root file system has the size. @throws the signal's reason */
  async attempt(machine: Machine, disk_bytes: number, signal: AbortSignal): Promise<boolean> {
    const { resets } = machine;
    try {
      await resize(machine, disk_bytes, signal);
      await growRoot(machine.agent, disk_bytes, AbortSignal.any([signal, machine.bootEnded(resets)]));
      this.#log.info({ disk_bytes }, 'the disk of a running guest has grown');
      return true;
    } catch (error) {
      signal.throwIfAborted();
      const reason = messageOf(error);
      this.#log.warn(
        { disk_bytes, reason },
        'the disk of a running guest did not grow; it does at its next boot',
      );
      return false;
    } finally {
      if (!signal.aborted) this.#tried = { machine, resets, disk_bytes };
    }
  }
}

/** Also sets a size that the disk already has, because that tells a guest that resumed with the old size. */
async function resize(machine: Machine, disk_bytes: number, signal: AbortSignal): Promise<void> {
  const { lazy } = machine;
  const work = async () => {
    // QEMU resizes no disk that it exports.
    await machine.exported.withdraw();
    await machine.disk.resize(disk_bytes);
  };
  // It waits for reads under way, as a flush does. The filling connects again by itself.
  await (lazy ? lazy.duringFlush(work, signal) : work());
}

/** How long the guest may take to shut down, or to begin a reboot. */
const GUEST_PART_MS = 10_000;

/** Reboots by the guest's agent, or by a reset if that takes too long. False: the machine powered off or died instead. */
async function rebootGuest(machine: Machine, signal: AbortSignal): Promise<boolean> {
  const { resets } = machine;
  const reset = machine.qmp.waitForEvent((event) => event.event === 'RESET', {
    timeout_ms: GUEST_PART_MS,
    signal,
  });
  reset.catch(() => undefined);
  await machine.agent.shutdown('reboot').catch(() => undefined);
  await reset.catch(() => undefined);
  if (signal.aborted || machine.gone || machine.view === 'off') return false;
  if (machine.resets === resets) await machine.qmp.execute('system_reset', undefined);
  return true;
}

/**
 * Reboot and power-off of a guest, by its agent if it answers in time.
 *
 * Shuts down by the guest's agent, or halts the machine if that takes too long. `force` halts it at once: the agent may hang, so
 * it is not even asked for its logins.
 */
export async function powerOffGuest(
  machine: Machine,
  client: ControlPlaneClient,
  force: boolean,
  signal: AbortSignal,
): Promise<void> {
  if (!force) {
    await reportLogins(machine, client);
    const off = machine.qmp.waitForEvent((event) => event.event === 'SHUTDOWN', {
      timeout_ms: GUEST_PART_MS,
      signal,
    });
    off.catch(() => undefined);
    await machine.agent.shutdown('powerdown', { timeout_ms: GUEST_PART_MS }).catch(() => undefined);
    await off.catch(() => undefined);
    if (signal.aborted || machine.gone) return;
  }
  if (machine.view !== 'off') await machine.halt();
}

export interface GuestReadinessParts {
  readonly context: HostContext;
  readonly folder: VmFolder;
  readonly local: LocalVm;
  readonly keys: KeyPusher;
  readonly secrets: SecretPusher;
  readonly endMachine: () => Promise<void>;
  readonly reportFailed: (reason: Reason) => Promise<void>;
}

const NO_TRACE: Reason = {
  code: 'vm_died',
  message:
    'Its host knows nothing of this VM, which ran before: the files of the host are gone, or another machine has taken its place. What the guest wrote after the last flush may be lost.',
};

/**
 * Waits until a booting guest is ready, and ends a boot whose guest does not come up: the failure is reported, the overlay stays.
 * A guest that was started from saved memory or a template boots cold instead.
 */
class GuestReadiness {
  readonly #parts: GuestReadinessParts;
  /** The template that this boot did not come up from. A guest's disk may be at fault, so it is judged by the boot without it. */
  #suspect: { readonly vm_id: VmId; readonly key: string } | null = null;

  constructor(parts: GuestReadinessParts) {
    this.#parts = parts;
  }

  /**
   * null: it did not come up, or the step was interrupted. @throws why an adopted guest that may serve users does not answer:
   * the step is retried without end; the control plane bounds how long a boot may take
   */
  async await(
    { vm_id, user_data, spec }: Assignment,
    machine: Machine,
    signals: { readonly signal: AbortSignal; readonly patience: AbortSignal },
  ): Promise<GuestUp | null> {
    const { context, folder, keys, secrets, endMachine } = this.#parts;
    const { template, resuming, reboots_done, image, image_version } = machine.record;
    try {
      const up = await awaitGuest(machine, { keys, secrets }, signals, async (still) => {
        if (user_data) await giveUserData(context.client, machine.agent, vm_id, still);
      });
      const booted = !template && !resuming && reboots_done === 0;
      if (up && booted) {
        if (this.#suspect?.vm_id === vm_id) await context.templates.reject(this.#suspect);
        context.templates.want({ image, image_version, ...sizeOf(spec) });
      }
      if (up) this.#suspect = null;
      return up;
    } catch (error) {
      if (signals.signal.aborted || signals.patience.aborted) return null;
      if (machine.survives_silence && !machine.gone && !machine.broken) throw error;
      const reason = reasonFor(error, 'boot_timeout');
      const said = consoleTail(folder.console_log);
      await endMachine();
      await this.#reportLost(vm_id, reason, {
        ...reason,
        message:
          `The guest did not come up: ${reason.message} Its console shows more (berth logs). ${said}`.trim(),
      });
      return null;
    }
  }

  /** A machine has ended that was not ended by us. */
  async reportDeath(vm_id: VmId): Promise<void> {
    const { local, folder } = this.#parts;
    const reason = local.wasLaunched(vm_id) ? deathReason(local, folder.console_log) : NO_TRACE;
    await this.#reportLost(vm_id, reason, reason);
  }

  async #reportLost(vm_id: VmId, of_resume: Reason, of_boot: Reason): Promise<void> {
    const { context, local, reportFailed } = this.#parts;
    const { template } = local;
    if (!local.resuming && !template) {
      await reportFailed(of_boot);
      return;
    }
    context.log.warn({ reason: of_resume }, 'a guest started from saved memory was lost; it boots cold');
    if (template) this.#suspect = { vm_id, key: template.key };
    await local.bootCold(of_resume);
  }
}

class GuestReports {
  readonly #report: (observed: Observation) => Promise<void>;
  #resets: { readonly of: Machine; readonly count: number } | null = null;
  #trouble: string | null = null;

  constructor(report: (observed: Observation) => Promise<void>) {
    this.#report = report;
  }

  /** Reports a reset since the last report: connections from before it are dead. */
  async reportResets(machine: Machine): Promise<void> {
    const { resets } = machine;
    const said = this.#resets?.of === machine ? this.#resets.count : 0;
    if (resets > said) await this.#report({ kind: 'rebooting' });
    this.#resets = { of: machine, count: resets };
  }

  hasUnreportedTrouble(machine: Machine | null): boolean {
    return (machine?.trouble?.code ?? null) !== this.#trouble;
  }

  async reportTrouble({ trouble }: Machine): Promise<void> {
    await this.#report(trouble ? { kind: 'stalled', reason: trouble } : { kind: 'resumed' });
    this.#trouble = trouble?.code ?? null;
  }

  /** The guest was reported as running, with this problem alone. */
  noteRunning(access_problem: Reason | null): void {
    this.#trouble = access_problem?.code ?? null;
  }
}

/** Longer than a healthy guest takes to answer. */
const SILENT_MS = 20_000;
/** After the first boot is reported, so that the flush does not delay its first login. */
const FIRST_FLUSH_MS = 2_000;

const SUSPENDED_AGAIN =
  'The VM could not be resumed and is suspended again; its memory and disk are as they were. Start it again, or stop it to boot from its disk.';

export interface VmStepsParts {
  readonly context: HostContext;
  readonly folder: VmFolder;
  readonly local: LocalVm;
  readonly reporter: Reporter;
  readonly keys: KeyPusher;
  readonly secrets: SecretPusher;
  readonly auto: AutoFlush;
  /** The agent closes. */
  readonly closing: AbortSignal;
  /** Changes the wanted state, unless another assignment has arrived. null: the instance is deleted. */
  readonly setDesired: (assignment: Assignment, desired: Assignment['desired'] | null) => void;
}

/** Which resets and which trouble of a running guest were reported to the control plane. */
export class VmSteps {
  /** The boot whose end was reported. */
  ended: Ending | null = null;
  readonly #parts: VmStepsParts;
  readonly #saver: DiskSaver;
  readonly #suspension: Suspension;
  readonly #readiness: GuestReadiness;
  readonly #growth: DiskGrowth;
  readonly #guest_reports = new GuestReports(async (observed) => {
    await this.#report(observed);
  });
  /** The machine that is waited for, until its guest answers. */
  #awaited: Machine | null = null;
  #assignment: Assignment | null = null;
  /** A guest that had no host key when it was reported. */
  #keyless: { readonly of: Machine; readonly up: Omit<GuestUp, 'access_problem'> } | null = null;

  constructor(parts: VmStepsParts) {
    this.#parts = parts;
    const { context, folder, local, reporter, keys, secrets } = parts;
    const actions = {
      endMachine: () => this.#endMachine(),
      report: async (observed: Observation) => {
        await this.#report(observed);
      },
      reportFailed: (reason: Reason) => this.#reportFailed(reason),
    };
    this.#saver = new DiskSaver({ ...actions, local, reporter, log: context.log });
    this.#suspension = new Suspension({ ...actions, local, reporter, context, keys });
    this.#growth = new DiskGrowth(context.log);
    this.#readiness = new GuestReadiness({ ...actions, local, context, keys, secrets, folder });
  }

  /** An adopted guest that may serve users, and has not answered for a while. */
  get isSilent(): boolean {
    const { machine } = this.#parts.local;
    return this.#awaited?.survives_silence === true && this.#awaited === machine;
  }

  get hasUnreportedTrouble(): boolean {
    return this.#guest_reports.hasUnreportedTrouble(this.#parts.local.machine);
  }

  isGrowthWanted(assignment: Assignment | null): boolean {
    return this.#growth.isWanted(assignment, this.#parts.local.machine);
  }

  isFlushAsked(assignment: Assignment | null): boolean {
    return this.#saver.isAsked(assignment);
  }

  /** Takes the step for `assignment`. */
  async take(step: Step, assignment: Assignment | null, signal: AbortSignal): Promise<void> {
    const { local, context } = this.#parts;
    this.#assignment = assignment;
    // The machine may have ended since the decision.
    if (local.isOver) await this.#endMachine();
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
        return local.cancelSuspend();
      case 'power_off':
        if (!this.#current.force) await local.running.ports.drain(signal);
        return powerOffGuest(local.running, context.client, this.#current.force, signal);
      case 'save':
        return this.#save(signal);
      case 'save_offline':
        return this.#saver.saveOffline(this.#current, signal);
      case 'end_machine':
        return this.#endMachine();
      case 'remove':
        return this.#remove();
      case 'report_trouble':
        return this.#reportTrouble(local.running);
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

  get #current(): Assignment {
    return present(this.#assignment, 'assignment');
  }

  /** A failed start ends the boot, unless the control plane or the lease was missing, or something else is wanted. */
  async #start(signal: AbortSignal): Promise<void> {
    const { local, context } = this.#parts;
    try {
      await local.launch(this.#current, signal, { run: true });
    } catch (error) {
      const reason = reasonFor(error, 'start_failed');
      if (signal.aborted || isRetriedStep(error)) throw error;
      context.log.error({ err: error }, 'the VM could not be started');
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
    this.ended = { vm_id, how: 'suspended' };
  }

  async #awaitGuest(signal: AbortSignal): Promise<void> {
    const { local, keys, secrets, auto, context } = this.#parts;
    const machine = local.running;
    await this.#guest_reports.reportResets(machine);
    const { host_key_new } = this.#current;
    await keys.pause();
    this.#awaited = machine;
    const found = await this.#readiness.await(this.#current, machine, {
      signal,
      patience: this.#patience(machine, signal),
    });
    if (found === null) return;
    this.#awaited = null;
    const { recovered, disk } = local;
    const { access_problem, ...up } = found;
    const outcome = await this.#report({
      ...{ kind: 'running', reboots: machine.record.reboots_done, ...up, recovered },
      ...(access_problem ? { access_problem } : {}),
    });
    const { vm_id } = this.#current;
    if (access_problem) context.log.warn({ vm_id, reason: access_problem }, 'nobody can log in to the guest');
    else context.log.info({ vm_id }, 'the guest is ready');
    this.#guest_reports.noteRunning(recovered ? null : access_problem);
    this.#keyless = up.host_keys.length === 0 ? { of: machine, up } : null;
    if (!machine.gone) keys.follow(machine);
    secrets.look();
    machine.lazy?.booted();
    // The guest has just made its host key, or may have (a fork): make it durable soon, so that it outlives this host.
    if (disk.hasNoGeneration || host_key_new) auto.hurry(FIRST_FLUSH_MS);
    if (outcome === 'accepted') await local.noteReported();
  }

  async #reportTrouble(machine: Machine): Promise<void> {
    await this.#guest_reports.reportTrouble(machine);
    const keyless = this.#keyless;
    if (machine.trouble !== null || keyless?.of !== machine) return;
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
    const { local, context } = this.#parts;
    const machine = local.running;
    const { reboots } = this.#current;
    await machine.ports.drain(signal);
    await reportLogins(machine, context.client);
    if (!(await rebootGuest(machine, signal))) return;
    // Reported first: an agent that ends in between reboots the guest again, and no reset stays unreported.
    await this.#guest_reports.reportResets(machine);
    if (!machine.gone) await machine.update({ reboots_done: reboots });
  }

  async #flush(signal: AbortSignal): Promise<void> {
    const { auto } = this.#parts;
    auto.began();
    auto.ended(await this.#saver.flush(this.#current, signal));
  }

  async #growDisk(signal: AbortSignal): Promise<void> {
    const { disk_bytes } = this.#current.spec;
    if (await this.#growth.attempt(this.#parts.local.running, disk_bytes, signal))
      await this.#report({ kind: 'disk_grown', disk_bytes });
  }

  async #save(signal: AbortSignal): Promise<void> {
    await this.#saver.save(this.#current, signal);
    await this.#reportStopped();
  }

  async #suspend(signal: AbortSignal): Promise<void> {
    const { local, keys, closing, setDesired } = this.#parts;
    const assignment = this.#current;
    const machine = local.running;
    await keys.pause();
    if (await this.#suspension.attempt(assignment, { signal, closing })) return;
    if (!machine.gone) keys.follow(machine);
    if (!signal.aborted) setDesired(assignment, 'running');
  }

  async #reportSuspended(): Promise<void> {
    const { local, keys, setDesired } = this.#parts;
    const assignment = this.#current;
    if (await this.#suspension.report(assignment)) {
      this.ended = { vm_id: assignment.vm_id, how: 'suspended' };
      await local.forget();
      return;
    }
    const { machine } = local;
    if (machine && !machine.gone) keys.follow(machine);
    if (assignment.desired === 'suspended') setDesired(assignment, 'running');
  }

  #endMachine(): Promise<void> {
    void this.#parts.keys.pause();
    return this.#parts.local.end();
  }

  async #remove(): Promise<void> {
    const { local, context, setDesired } = this.#parts;
    const assignment = this.#current;
    await local.remove();
    await this.#report({ kind: 'deleted' });
    this.ended = { vm_id: assignment.vm_id, how: 'stopped' };
    setDesired(assignment, null);
    context.log.info('removed from this host');
  }

  /** A report that is fenced ends the machine: another placement has the instance. */
  async #report(observed: Observation): Promise<ReportResponse['outcome']> {
    const { local, reporter, context } = this.#parts;
    const { vm_id, epoch } = this.#current;
    const outcome = await reporter.report({ vm_id, epoch, observed });
    if (outcome !== 'fenced') return outcome;
    if (local.machine) context.log.error({ observed: observed.kind }, 'fenced: the VM is ended');
    await this.#endMachine();
    this.ended = { vm_id, how: 'stopped' };
    return outcome;
  }

  /** A stop is wanted from here on, even if the control plane has not assigned it yet. */
  async #reportPoweredOff(): Promise<void> {
    const assignment = this.#current;
    await this.#report({ kind: 'powered_off' });
    this.#parts.setDesired(assignment, 'stopped');
  }

  /** Names the head that has everything. The control plane fails the VM if there is none, or if it is not the head. */
  async #reportStopped(): Promise<void> {
    const { local, context, setDesired } = this.#parts;
    const assignment = this.#current;
    const { vm_id } = assignment;
    const { recovered, saved_by: commit_id } = local;
    const outcome = await this.#report({ kind: 'stopped', commit_id, ...(recovered ? { recovered } : {}) });
    if (outcome === 'unwanted') {
      context.log.error({ commit_id }, 'the VM has failed: its last writes are not saved');
      this.ended = { vm_id, how: 'failed' };
      local.lookAgain();
      setDesired(assignment, 'failed');
      return;
    }
    this.ended = { vm_id, how: 'stopped' };
    if (outcome === 'accepted') await local.noteReported();
    await local.forget();
  }

  async #reportFailed(reason: Reason): Promise<void> {
    const { vm_id } = this.#current;
    await this.#report({ kind: 'failed', reason, guest_ran: this.#parts.local.mayHaveRun(vm_id) });
    this.ended = { vm_id, how: 'failed' };
  }
}
