/**
 * The reconciler's flushes: requested by a caller, automatic, final (before a VM ends), and of a disk whose machine has
 * died. The outcome of a requested flush is reported to its callers. Blocks that a failed flush did not save stay
 * marked, and the next flush saves them. `Suspension` has the reconciler's part in a suspend, which makes memory and
 * disk durable together.
 */
import { discardMemory } from '../../disk-format/memory-format.ts';
import { BLOCK_BYTES } from '../../disk-format/segment-format.ts';
import type { Assignment, FlushResult, Reason } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import type { FlushId } from '../../shared/ids.ts';
import { FencedError } from '../disk/disk-state.ts';
import { nothingFlushed } from '../disk/flush-disk.ts';
import type { HostContext } from '../host-context.ts';
import { reasonFor } from '../vm/failure-reasons.ts';
import type { StepContext } from './guest-steps.ts';
import type { LocalVm } from './local-vm.ts';
import type { Reporter } from './reconciler.ts';

/** Writes are lost, so a receipt would be wrong. */
class LostError extends Error {
  override name = 'LostError';
}

/** What a flush needs of the reconciler. */
export type FlushedVm = Pick<StepContext, 'endMachine' | 'report' | 'reportFailed'> & {
  readonly reporter: Pick<Reporter, 'flush' | 'flushFailure'>;
  readonly context: Pick<HostContext, 'log'>;
  readonly local: Pick<
    LocalVm,
    'running' | 'flush' | 'launch' | 'lookForUnsaved' | 'markSaved' | 'unsaved' | 'lost' | 'saved_by'
  >;
};

export class Flushes {
  readonly #vm: FlushedVm;
  /** The newest requested flush that has begun. */
  #begun: FlushId | null = null;
  /** An automatic flush has failed since the last successful flush, and was reported. */
  #failing = false;

  constructor(vm: FlushedVm) {
    this.#vm = vm;
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
      this.#vm.context.log.warn({ err: error }, 'the automatic flush failed; the next interval tries again');
      if (!this.#failing && !signal.aborted) await this.#reportFailing(assignment, error);
      return false;
    }
  }

  /** The final flush of a machine that is off, and its end. Throws until all is durable; the step is retried. */
  async save(assignment: Assignment, signal: AbortSignal): Promise<void> {
    const { local, endMachine } = this.#vm;
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
    const { local, endMachine } = this.#vm;
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
    const { lost, saved_by } = this.#vm.local;
    if (lost) throw new LostError(`${lost.message} Start it.`);
    if (saved_by === null) throw new Error('the disk of this VM cannot be read');
    return nothingFlushed(saved_by);
  }

  async #answer(flush_id: FlushId, work: () => Promise<FlushResult>): Promise<boolean> {
    const { reporter, context } = this.#vm;
    await reporter.flush({ flush_id, state: 'running' });
    this.#begun = flush_id;
    try {
      const result = await work();
      const { commit_id, uploaded_bytes, duration_ms } = result;
      context.log.info({ flush_id, commit_id, uploaded_bytes, duration_ms }, 'a requested flush is done');
      await reporter.flush({ flush_id, state: 'done', result });
      return true;
    } catch (error) {
      const lost = error instanceof LostError ? ({ code: 'vm_gone', message: error.message } as const) : null;
      await reporter.flush({ flush_id, state: 'failed', error: lost ?? reasonFor(error, 'flush_failed') });
      if (error instanceof FencedError) throw error;
      context.log.warn({ err: error }, 'a flush failed');
      return false;
    }
  }

  /** Fenced: another placement has the disk, and this machine's writes since its last commit are void. */
  async #flushMachine(
    assignment: Assignment,
    quiesce: 'freeze' | 'offline' | 'crash',
    signal: AbortSignal,
  ): Promise<FlushResult> {
    const { local, context, endMachine, reportFailed } = this.#vm;
    try {
      const result = await local.flush(assignment, quiesce, signal);
      this.#failing = false;
      return result;
    } catch (error) {
      if (error instanceof FencedError) {
        context.log.error({ err: error }, 'fenced: the VM is ended');
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
    await this.#vm.reporter.flushFailure({ vm_id, epoch, error: reason });
  }

  async #reportPending(error: unknown): Promise<void> {
    if (error instanceof FencedError) return;
    const { message } = reasonFor(error, 'flush_failed');
    await this.#vm.report({
      kind: 'flush_pending',
      reason: { code: 'flush_pending', message: `The final flush waits: ${message}` },
    });
  }
}

/** The guest may be paused for the attempt: enough time for a store of 16 MiB/s, and no waiting for one that is away. */
const ATTEMPT_MS = 120_000;
const ATTEMPT_MS_PER_MIB = 62;
const ATTEMPT_MAX_MS = 3_300_000;

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
  readonly #vm: StepContext;

  constructor(vm: StepContext) {
    this.#vm = vm;
  }

  /** True: the guest is paused and all is durable. Else it continues, which is reported unless another state is wanted. */
  async attempt(assignment: Assignment, { signal, closing }: Signals): Promise<boolean> {
    const { context, local, keys, endMachine, report, reportFailed } = this.#vm;
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
    const { context, local, reporter, endMachine, report } = this.#vm;
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

const LONE_BLOCK_INTERVALS = 10;
const HURRY_AGAIN_MS = 30_000;

/**
 * When the automatic flush is due: its interval has passed, and something is dirty.
 *
 * The thaw after a flush writes the file system's superblock, so an idle guest always has one dirty block. A real write dirties
 * more than one (data, inode, journal); a single dirty block waits ten intervals.
 */
export class AutoFlush {
  readonly #due: () => void;
  #interval_s: number | null = null;
  #timer: NodeJS.Timeout | undefined;
  /** Whole intervals since the last flush began. */
  #elapsed = 0;
  #dirty_bytes = 0;
  #hurry: NodeJS.Timeout | undefined;
  #hurried = false;
  /** Whether the last flush was a hurried one. */
  #was_hurried = false;

  /** `due` is called when {@link due} becomes true. */
  constructor(due: () => void) {
    this.#due = due;
  }

  get due(): boolean {
    if (this.#hurried) return true;
    if (this.#dirty_bytes === 0) return false;
    return this.#elapsed >= (this.#dirty_bytes > BLOCK_BYTES ? 1 : LONE_BLOCK_INTERVALS);
  }

  /** Makes a flush due in `ms`, whatever the interval, even if it is off. */
  hurry(ms: number): void {
    clearTimeout(this.#hurry);
    this.#hurry = setTimeout(() => {
      this.#hurried = true;
      this.#due();
    }, ms);
  }

  /** null turns it off. */
  configure(interval_s: number | null): void {
    if (interval_s === this.#interval_s) return;
    this.#interval_s = interval_s;
    this.#restart();
  }

  /** A flush of any kind begins. */
  began(): void {
    this.#was_hurried = this.#hurry !== undefined;
    this.#dirty_bytes = 0;
    this.#hurried = false;
    clearTimeout(this.#hurry);
    this.#hurry = undefined;
    this.#restart();
  }

  /** The flush has ended. A hurried flush that failed is due again soon. */
  ended(saved: boolean): void {
    if (this.#was_hurried && !saved) this.hurry(HURRY_AGAIN_MS);
  }

  /** Takes the bitmap's count; null: unknown. */
  observe(dirty_bytes: number | null): void {
    const was = this.due;
    if (dirty_bytes !== null) this.#dirty_bytes = dirty_bytes;
    if (this.due && !was) this.#due();
  }

  close(): void {
    clearInterval(this.#timer);
    clearTimeout(this.#hurry);
  }

  #restart(): void {
    clearInterval(this.#timer);
    this.#elapsed = 0;
    if (this.#interval_s === null) return;
    this.#timer = setInterval(() => {
      const was = this.due;
      this.#elapsed += 1;
      if (this.due && !was) this.#due();
    }, this.#interval_s * 1000);
  }
}
