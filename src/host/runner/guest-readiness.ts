/**
 * Whether a guest comes up, and what becomes of a boot whose guest does not: it is ended and said, what it wrote is kept; or,
 * where it was to go on from saved memory or a template, it boots cold instead.
 */
import type { Assignment, Reason } from '../../agent-api/types.ts';
import type { HostContext } from '../host-context.ts';
import type { KeyPusher } from '../keys/key-pusher.ts';
import { consoleTail } from '../machine/console-log.ts';
import { deathReason, reasonFor } from '../machine/failure-reasons.ts';
import type { Machine } from '../machine/machine.ts';
import type { VmFolder } from '../machine/record.ts';
import { awaitGuest, type GuestUp } from '../start/await-guest.ts';
import { giveUserData } from '../start/give-user-data.ts';
import { sizeOf } from '../start/launch-qemu.ts';
import type { LocalVm } from './local-vm.ts';

export interface GuestReadinessParts {
  readonly context: HostContext;
  readonly folder: VmFolder;
  readonly local: LocalVm;
  readonly keys: KeyPusher;
  readonly endMachine: () => Promise<void>;
  readonly reportFailed: (reason: Reason) => Promise<void>;
}

export class GuestReadiness {
  readonly #parts: GuestReadinessParts;

  constructor(parts: GuestReadinessParts) {
    this.#parts = parts;
  }

  /**
   * null when it did not come up, or something else is to be looked at. @throws why a guest that an earlier agent left is not
   * heard: it is waited for on and on; where it never came up, the control plane knows for how long that may take
   */
  async await(
    { vm_id, user_data, spec }: Assignment,
    machine: Machine,
    signal: AbortSignal,
  ): Promise<GuestUp | null> {
    const { context, folder, keys, endMachine } = this.#parts;
    const { template, resuming, reboots_done, image, image_version } = machine.record;
    try {
      const up = await awaitGuest(machine, keys, signal, async (still) => {
        if (user_data) await giveUserData(context.client, machine.agent, vm_id, still);
      });
      const booted = !template && !resuming && reboots_done === 0;
      if (up && booted && image) context.templates.want({ image, image_version, ...sizeOf(spec) });
      return up;
    } catch (error) {
      if (signal.aborted) return null;
      if (machine.survives_silence && !machine.gone && !machine.broken) throw error;
      const reason = reasonFor(error, 'boot_timeout');
      const said = consoleTail(folder.console_log);
      await endMachine();
      await this.#reportLost(reason, {
        ...reason,
        message: `The guest did not come up: ${reason.message} ${said}`.trim(),
      });
      return null;
    }
  }

  /** A machine that nobody ended is gone. */
  async reportDeath(): Promise<void> {
    const { local, folder } = this.#parts;
    const reason = deathReason(local, folder.console_log);
    await this.#reportLost(reason, reason);
  }

  async #reportLost(of_resume: Reason, of_boot: Reason): Promise<void> {
    const { context, local, reportFailed } = this.#parts;
    const { template } = local;
    if (!local.resuming && !template) {
      await reportFailed(of_boot);
      return;
    }
    context.log.warn({ reason: of_resume }, 'the guest that went on from a memory is lost; it boots cold');
    if (template) await context.templates.reject(template);
    await local.bootCold(of_resume);
  }
}
