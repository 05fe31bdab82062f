/**
 * The steps of a reconciler that need the guest's help: waiting until the guest is ready, its reboot and power-off, and
 * the growth of its disk. Also the reports about a running guest. Each step has a time limit. After that the machine is
 * reset, halted or ended; the growth of a disk is left to the guest's next boot.
 */
import type { ControlPlaneClient } from '../../protocol/client.ts';
import type { Assignment, Observation, Reason } from '../../protocol/types.ts';
import { messageOf } from '../../shared/errors.ts';
import type { VmId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import type { KeyPusher } from '../guest/authorized-keys.ts';
import type { SecretPusher } from '../guest/guest-secrets.ts';
import { growRoot } from '../guest/guest-use.ts';
import { reportLogins } from '../guest/sshd.ts';
import type { HostContext } from '../host-context.ts';
import { awaitGuest, type GuestUp, giveUserData } from '../vm/await-guest.ts';
import { consoleTail } from '../vm/console-log.ts';
import { deathReason, reasonFor } from '../vm/failure-reasons.ts';
import { sizeOf } from '../vm/launch-machine.ts';
import type { Machine } from '../vm/machine.ts';
import type { VmFolder } from '../vm/record.ts';
import type { LocalVm } from './local-vm.ts';
import type { Reporter } from './reconciler.ts';

/** What the parts of a reconciler share: the VM, who hears of it, and the reconciler's own steps. */
export interface StepContext {
  readonly context: HostContext;
  readonly folder: VmFolder;
  readonly local: LocalVm;
  readonly reporter: Reporter;
  readonly keys: KeyPusher;
  readonly secrets: SecretPusher;
  readonly endMachine: () => Promise<void>;
  /** Reports an observation of the boot whose step is under way. */
  readonly report: (observed: Observation) => Promise<void>;
  readonly reportFailed: (reason: Reason) => Promise<void>;
}

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
export class DiskGrowth {
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
export async function rebootGuest(machine: Machine, signal: AbortSignal): Promise<boolean> {
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

const NO_TRACE: Reason = {
  code: 'vm_died',
  message:
    'Its host knows nothing of this VM, which ran before: the files of the host are gone, or another machine has taken its place. What the guest wrote after the last flush may be lost.',
};

/**
 * Waits until a booting guest is ready, and ends a boot whose guest does not come up: the failure is reported, the overlay stays.
 * A guest that was started from saved memory or a template boots cold instead.
 */
export class GuestReadiness {
  readonly #vm: StepContext;
  /** The template that this boot did not come up from. A guest's disk may be at fault, so it is judged by the boot without it. */
  #suspect: { readonly vm_id: VmId; readonly key: string } | null = null;

  constructor(vm: StepContext) {
    this.#vm = vm;
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
    const { context, folder, keys, secrets, endMachine } = this.#vm;
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
    const { local, folder } = this.#vm;
    const reason = local.wasLaunched(vm_id) ? deathReason(local, folder.console_log) : NO_TRACE;
    await this.#reportLost(vm_id, reason, reason);
  }

  async #reportLost(vm_id: VmId, of_resume: Reason, of_boot: Reason): Promise<void> {
    const { context, local, reportFailed } = this.#vm;
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

/** Which resets and which problem of a running guest were reported to the control plane. */
export class GuestReports {
  readonly #report: (observed: Observation) => Promise<void>;
  #resets: { readonly of: Machine; readonly count: number } | null = null;
  #problem: string | null = null;

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

  hasUnreportedProblem(machine: Machine | null): boolean {
    return (machine?.problem?.code ?? null) !== this.#problem;
  }

  async reportProblem({ problem }: Machine): Promise<void> {
    await this.#report(problem ? { kind: 'stalled', reason: problem } : { kind: 'resumed' });
    this.#problem = problem?.code ?? null;
  }

  /** The guest was reported as running, with this problem alone. */
  noteRunning(access_problem: Reason | null): void {
    this.#problem = access_problem?.code ?? null;
  }
}
