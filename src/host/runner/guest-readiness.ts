/**
 * Waits until a booting guest is ready, and ends a boot whose guest does not come up: the failure is reported, the overlay stays.
 * A guest that was started from saved memory or a template boots cold instead.
 */
import type { Assignment, Reason } from '../../protocol/types.ts';
import type { VmId } from '../../shared/ids.ts';
import type { HostContext } from '../host-context.ts';
import type { KeyPusher } from '../keys/key-pusher.ts';
import { consoleTail } from '../machine/console-log.ts';
import { deathReason, reasonFor } from '../machine/failure-reasons.ts';
import type { Machine } from '../machine/machine.ts';
import type { VmFolder } from '../machine/record.ts';
import type { SecretPusher } from '../secrets/secret-pusher.ts';
import { awaitGuest, type GuestUp } from '../start/await-guest.ts';
import { giveUserData } from '../start/give-user-data.ts';
import { sizeOf } from '../start/launch-qemu.ts';
import type { LocalVm } from './local-vm.ts';

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

export class GuestReadiness {
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
