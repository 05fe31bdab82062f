/**
 * The runner's part in a suspend: asked for, said, and given up. A machine whose memory is durable is ended only once the
 * control plane has taken the memory, or wants nothing of the machine any more; told that it is to run on, it does.
 */
import type { Assignment, Observation, Reason } from '../../agent-api/types.ts';
import { discardMemory } from '../../disk-format/memory-format.ts';
import { present } from '../../lib/assert.ts';
import type { HostContext } from '../host-context.ts';
import type { KeyPusher } from '../keys/key-pusher.ts';
import { reasonFor } from '../machine/failure-reasons.ts';
import { FencedError } from '../overlay/commit-outcome.ts';
import type { LocalVm } from './local-vm.ts';
import type { Reporter } from './reporter.ts';

/** For an attempt, with the guest standing still: a store of 16 MiB/s is fast enough, and one that is away is not waited for. */
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
  /** Something else is wanted. */
  readonly signal: AbortSignal;
  /** The agent closes: all that a flush heeds, whose commit may be under way. */
  readonly closing: AbortSignal;
}

export class Suspension {
  readonly #parts: SuspensionParts;

  constructor(parts: SuspensionParts) {
    this.#parts = parts;
  }

  /** True when the guest stands still and all is durable; else it runs on, and that was said unless something else is wanted. */
  async attempt(assignment: Assignment, { signal, closing }: Signals): Promise<boolean> {
    const { context, local, keys, endMachine, report, reportFailed } = this.#parts;
    const machine = local.running;
    machine.noteGiven(keys.settled, machine.resets);
    const within = AbortSignal.timeout(
      Math.min(ATTEMPT_MAX_MS, ATTEMPT_MS + assignment.spec.memory_mib * ATTEMPT_MS_PER_MIB),
    );
    try {
      const { memory_bytes, stored_bytes, generation } = await local.suspend(
        assignment,
        AbortSignal.any([signal, within]),
        closing,
      );
      context.log.info({ memory_bytes, stored_bytes, generation }, 'memory and disk are durable');
      return true;
    } catch (error) {
      context.log.warn({ err: error }, 'the VM was not suspended');
      if (error instanceof FencedError) {
        await endMachine();
        await reportFailed(reasonFor(error, 'fenced'));
      } else if (!signal.aborted && !machine.gone && !machine.broken && machine.view !== 'off') {
        await report({ kind: 'suspend_failed', reason: failedReason(within.aborted ? LATE : error) });
      }
      return false;
    }
  }

  /** True when the boot is over; else its guest runs on. */
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
const UNWANTED = new Error('something else was wanted meanwhile');

function failedReason(error: unknown): Reason {
  const { message } = reasonFor(error, 'suspend_failed');
  return { code: 'suspend_failed', message: `The VM was not suspended and runs on: ${message}` };
}
