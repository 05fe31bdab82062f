/**
 * The reconciler's flushes: requested, automatic, final, and of a disk whose machine has died. The outcome of a requested flush
 * is reported to its callers. Blocks that a failed flush did not save stay marked, and the next flush saves them.
 */
import { discardMemory } from '../../disk-format/memory-format.ts';
import type { Assignment, FlushResult, Observation, Reason } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import type { FlushId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { FencedError } from '../disk/disk-state.ts';
import { nothingFlushed } from '../disk/flush-disk.ts';
import type { KeyPusher } from '../guest/authorized-keys.ts';
import type { HostContext } from '../host-context.ts';
import { reasonFor } from '../vm/failure-reasons.ts';
import type { LocalVm } from './local-vm.ts';
import type { Reporter } from './vm-runner.ts';

/** Writes are lost, so a receipt would be wrong. */
class LostError extends Error {
  override name = 'LostError';
}

export interface DiskSaverParts {
  readonly local: LocalVm;
  readonly reporter: Reporter;
  readonly log: Log;
  readonly endMachine: () => Promise<void>;
  readonly report: (observed: Observation) => Promise<void>;
  readonly reportFailed: (reason: Reason) => Promise<void>;
}

export class DiskSaver {
  readonly #parts: DiskSaverParts;
  /** The newest requested flush that has begun. */
  #begun: FlushId | null = null;
  /** An automatic flush has failed since the last successful flush, and was reported. */
  #failing = false;

  constructor(parts: DiskSaverParts) {
    this.#parts = parts;
  }

  /** Callers wait for a flush that has not begun. */
  isAsked(assignment: Assignment | null): boolean {
    const flush_id = assignment?.flush_id ?? null;
    return flush_id !== null && flush_id !== this.#begun;
  }

  /** Flushes a running guest; returns whether that succeeded. Of automatic flushes that fail, the first in a row is reported. */
  async flush(assignment: Assignment, signal: AbortSignal): Promise<boolean> {
    const work = () => this.#flushMachine(assignment, 'freeze', signal);
    if (assignment.flush_id !== null && this.isAsked(assignment)) {
      return this.#answer(assignment.flush_id, work);
    }
    try {
      await work();
      return true;
    } catch (error) {
      if (error instanceof FencedError) throw error;
      this.#parts.log.warn({ err: error }, 'the automatic flush failed; the next interval tries again');
      if (!this.#failing && !signal.aborted) await this.#reportFailing(assignment, error);
      return false;
    }
  }

  /** The final flush of a machine that is off, and its end. Throws until all is durable; the step is retried. */
  async save(assignment: Assignment, signal: AbortSignal): Promise<void> {
    const { local, endMachine } = this.#parts;
    const machine = local.running;
    let saved: FlushResult;
    try {
      saved = await this.#flushMachine(assignment, machine.cleanly_off ? 'offline' : 'crash', signal);
    } catch (error) {
      if (!signal.aborted && !machine.gone) await this.#reportPending(error);
      throw error;
    }
    await endMachine();
    await local.markSaved(assignment, saved.commit_id);
  }

  /** Saves what a dead machine has left in its overlay: a machine opens the disk, and its guest never runs. */
  async saveOffline(assignment: Assignment, signal: AbortSignal): Promise<void> {
    if (assignment.flush_id !== null && this.isAsked(assignment)) {
      await this.#answer(assignment.flush_id, () => this.#saveOverlay(assignment, signal));
      return;
    }
    try {
      await this.#saveOverlay(assignment, signal);
    } catch (error) {
      // Reported with the end of the boot.
      if (error instanceof LostError) return;
      if (!signal.aborted) await this.#reportPending(error);
      throw error;
    }
  }

  async #saveOverlay(assignment: Assignment, signal: AbortSignal): Promise<FlushResult> {
    const { local, endMachine } = this.#parts;
    // The overlay may be gone since the last look.
    await local.lookForUnsaved(assignment);
    if (local.unsaved !== true) return this.#unchanged();
    await local.launch(assignment, signal, { run: false });
    try {
      const saved = await this.#flushMachine(assignment, 'crash', signal);
      await endMachine();
      await local.markSaved(assignment, saved.commit_id);
      return saved;
    } finally {
      await endMachine();
    }
  }

  /** Nothing is unsaved: the head has everything, or it is lost. */
  #unchanged(): FlushResult {
    const { lost, saved_by } = this.#parts.local;
    if (lost) throw new LostError(`${lost.message} Start it.`);
    if (saved_by === null) throw new Error('the disk of this VM cannot be read');
    return nothingFlushed(saved_by);
  }

  async #answer(flush_id: FlushId, work: () => Promise<FlushResult>): Promise<boolean> {
    const { reporter, log } = this.#parts;
    await reporter.flush({ flush_id, state: 'running' });
    this.#begun = flush_id;
    try {
      const result = await work();
      const { commit_id, uploaded_bytes, duration_ms } = result;
      log.info({ flush_id, commit_id, uploaded_bytes, duration_ms }, 'a requested flush is done');
      await reporter.flush({ flush_id, state: 'done', result });
      return true;
    } catch (error) {
      const lost = error instanceof LostError ? ({ code: 'vm_gone', message: error.message } as const) : null;
      await reporter.flush({ flush_id, state: 'failed', error: lost ?? reasonFor(error, 'flush_failed') });
      if (error instanceof FencedError) throw error;
      log.warn({ err: error }, 'a flush failed');
      return false;
    }
  }

  /** Fenced: another placement has the disk, and this machine's writes since its last commit are void. */
  async #flushMachine(
    assignment: Assignment,
    quiesce: 'freeze' | 'offline' | 'crash',
    signal: AbortSignal,
  ): Promise<FlushResult> {
    const { local, log, endMachine, reportFailed } = this.#parts;
    try {
      const result = await local.flush(assignment, quiesce, signal);
      this.#failing = false;
      return result;
    } catch (error) {
      if (error instanceof FencedError) {
        log.error({ err: error }, 'fenced: the VM is ended');
        await endMachine();
        await reportFailed({
          code: 'fenced',
          message: `The disk has moved on without this VM: ${error.message}.`,
        });
      }
      throw error;
    }
  }

  async #reportFailing({ vm_id, epoch }: Assignment, error: unknown): Promise<void> {
    const reason = reasonFor(error, 'flush_failed');
    // The control plane notices its own absence, and a report would only wait for it.
    if (reason.code === 'control_plane_away') return;
    this.#failing = true;
    await this.#parts.reporter.flushFailure({ vm_id, epoch, error: reason });
  }

  async #reportPending(error: unknown): Promise<void> {
    if (error instanceof FencedError) return;
    const { message } = reasonFor(error, 'flush_failed');
    await this.#parts.report({
      kind: 'flush_pending',
      reason: { code: 'flush_pending', message: `The final flush waits: ${message}` },
    });
  }
}

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

/**
 * The reconciler's part in a suspend: the attempt, its report, and its cancellation. A machine whose memory is durable ends only
 * after the control plane has accepted the memory, or no longer wants the machine. If the suspend is unwanted, the guest continues.
 */
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
