/**
 * The reconciler's part in a suspend: the attempt, its report, and its cancellation. A machine whose memory is durable ends only
 * after the control plane has accepted the memory, or no longer wants the machine. If the suspend is unwanted, the guest continues.
 */
import { discardMemory } from '../../disk-format/memory-format.ts';
import type { Assignment, Observation, Reason } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import type { HostContext } from '../host-context.ts';
import type { KeyPusher } from '../keys/key-pusher.ts';
import { reasonFor } from '../machine/failure-reasons.ts';
import { FencedError } from '../overlay/commit-outcome.ts';
import type { LocalVm } from './local-vm.ts';
import type { Reporter } from './reporter.ts';

/** The guest may be paused for the attempt: enough time for a store of 16 MiB/s, and no waiting for one that is away. */
const ATTEMPT_MS = 120_000;
const ATTEMPT_MS_PER_MIB = 62;
const ATTEMPT_MAX_MS = 3_300_000;

export interface SuspensionParts {
  readonly context: HostContext;
  readonly local: LocalVm;
  readonly keys: KeyPusher;
  readonly reporter: Reporter;
  readonly endMachine: () => Promise<void>;
  readonly report: (observed: Observation) => Promise<void>;
  readonly reportFailed: (reason: Reason) => Promise<void>;
}

export interface Signals {
  /** Another state is wanted. */
  readonly signal: AbortSignal;
  /** The agent closes. Only this interrupts the wait for the outcome of a commit that was sent. */
  readonly closing: AbortSignal;
}

export class Suspension {
  readonly #parts: SuspensionParts;

  constructor(parts: SuspensionParts) {
    this.#parts = parts;
  }

  /** True: the guest is paused and all is durable. Else it continues, which is reported unless another state is wanted. */
  async attempt(assignment: Assignment, { signal, closing }: Signals): Promise<boolean> {
    const { context, local, keys, endMachine, report, reportFailed } = this.#parts;
    const machine = local.running;
    machine.noteGiven(keys.settled, machine.resets);
    const deadline = AbortSignal.timeout(
      Math.min(ATTEMPT_MAX_MS, ATTEMPT_MS + assignment.spec.memory_mib * ATTEMPT_MS_PER_MIB),
    );
    try {
      const { memory_bytes, stored_bytes, generation } = await local.suspend(assignment, {
        signal,
        deadline,
        closing,
      });
      context.log.info({ memory_bytes, stored_bytes, generation }, 'memory and disk are durable');
      return true;
    } catch (error) {
      context.log.warn({ err: error }, 'the VM was not suspended');
      if (error instanceof FencedError) {
        await endMachine();
        await reportFailed(reasonFor(error, 'fenced'));
      } else if (!signal.aborted && !machine.gone && !machine.broken && machine.view !== 'off') {
        await report({ kind: 'suspend_failed', reason: failedReason(deadline.aborted ? LATE : error) });
      }
      return false;
    }
  }

  /** True: the boot is over. Else its guest continues. */
  async report(assignment: Assignment): Promise<boolean> {
    const { context, local, reporter, endMachine, report } = this.#parts;
    const { vm_id, epoch } = assignment;
    const memory = present(local.savedMemory(vm_id), 'saved memory');
    const outcome = await reporter.suspended({ vm_id, epoch, observed: { kind: 'suspended', memory } });
    if (outcome === 'unwanted') {
      await local.cancelSuspend();
      await discardMemory(context.store, memory);
      await report({ kind: 'suspend_failed', reason: failedReason(UNWANTED) });
      return false;
    }
    if (outcome === 'accepted') await local.endSuspended(assignment, memory);
    else await endMachine();
    return true;
  }
}

const LATE = new Error('it took too long');
const UNWANTED = new Error('another state was wanted meanwhile');

function failedReason(error: unknown): Reason {
  const { message } = reasonFor(error, 'suspend_failed');
  return { code: 'suspend_failed', message: `The VM was not suspended and runs on: ${message}` };
}
