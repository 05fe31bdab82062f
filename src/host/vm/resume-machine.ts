/**
 * Starts a boot: resumed from the memory of a suspended VM if there is one, else from a template, else by booting.
 *
 *   resume ──guest runs──▶ launched
 *     ├──the memory is unusable, consumed, or a guest was lost after it──▶ boot from the same generation ──▶ launched
 *     ├──a failure that passes──▶ resume again, for a minute
 *     └──any other failure──▶ NotResumedError: the VM is suspended again, and the next start may be on another host
 *
 * A boot in place of a resume is reported with its reason.
 *
 * Invariant: memory is loaded before the machine's first instruction. A boot whose guest has run never loads it again.
 */
import { consumerOf, MemoryConsumedError, MemoryDamagedError } from '../../disk-format/memory-format.ts';
import { type ObjectStore, ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { MemoryRef, Reason } from '../../protocol/types.ts';
import { assert } from '../../shared/assert.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { LeaseOverError } from '../lease/host-lease.ts';
import { StreamRefusedError } from '../qemu/migration.ts';
import { QmpTimeoutError } from '../qemu/qmp-client.ts';
import { reasonFor } from './failure-reasons.ts';
import {
  GuestMayRunError,
  type How,
  type Launch,
  launchMachine,
  MayBeConsumedError,
  MemoryUnfitError,
  TemplateError,
} from './launch-machine.ts';
import type { Machine } from './machine.ts';

/** How long a passing failure is retried before the start is given up. */
const PATIENCE_MS = 60_000;

/** No guest of this boot has run, so the next start can use the memory. */
export class NotResumedError extends Error {
  override name = 'NotResumedError';
}

/** @param cold why an earlier try found that this boot must boot @throws NotResumedError, or why the VM cannot be launched */
export async function launchOrResume(launch: Launch, cold: Reason | null): Promise<Machine> {
  const { context, assignment, ran, consumer, signal } = launch;
  const { instance_id, resume } = assignment;
  if (!resume) return cold ? launchMachine(launch, { run: true, cold }) : launchFast(launch);
  return resumeOrBoot({
    ...{
      memory: resume,
      cold,
      ran,
      consumer,
      previous_failed: assignment.previous_failed,
      store: context.store,
      log: context.log.child({ instance_id }),
      signal,
    },
    launchOnce: (how, has_run) => launchMachine({ ...launch, ran: has_run }, how),
  });
}

export interface ResumeOptions<T> extends Pick<Launch, 'ran' | 'consumer' | 'signal'> {
  /** The boot before this one failed, and its guest may have written what only this host has. */
  readonly previous_failed: boolean;
  readonly memory: MemoryRef;
  readonly cold: Reason | null;
  readonly store: Pick<ObjectStore, 'get'>;
  readonly log: Log;
  /** `ran`: a guest of this boot may have run. */
  readonly launchOnce: (how: How, ran: boolean) => Promise<T>;
  readonly patience_ms?: number;
}

/** @throws NotResumedError, or why the VM cannot be launched */
export async function resumeOrBoot<T>(options: ResumeOptions<T>): Promise<T> {
  const { cold, ran } = options;
  assert(cold !== null || !ran, 'a guest that has run is never resumed from the same memory again');
  return cold ? bootCold(options, cold, { ran, pristine: !ran }) : resume(options);
}

/** Only while memory and disk are as the suspend left them is the VM suspended again. */
function notResumed<T>({ previous_failed, signal }: ResumeOptions<T>, error: unknown): unknown {
  if (signal.aborted || previous_failed || error instanceof GuestMayRunError || isRetriedStep(error))
    return error;
  return new NotResumedError(reasonFor(error, 'resume_failed').message, { cause: error });
}

async function resume<T>(options: ResumeOptions<T>): Promise<T> {
  const { memory, log, signal, launchOnce, patience_ms = PATIENCE_MS } = options;
  const deadline = performance.now() + patience_ms;
  for (let attempt = 0; ; attempt++) {
    try {
      await requireUnconsumed(options);
      return await launchOnce({ run: true, memory }, false);
    } catch (error) {
      if (signal.aborted || isRetriedStep(error)) throw error;
      log.warn({ err: error }, 'the VM is not resumed');
      const may_run = error instanceof GuestMayRunError;
      const pristine = !may_run && !(error instanceof MemoryConsumedError);
      if (may_run || isUnusable(error))
        return bootCold(options, coldReason(reasonFor(error, 'cold_boot')), { ran: may_run, pristine });
      // A silent QEMU whose guest has not run loses nothing: another one may answer.
      const passing = error instanceof ObjectStoreUnavailableError || error instanceof QmpTimeoutError;
      if (!passing || performance.now() > deadline) throw notResumed(options, error);
      if (!(await pause(backoffMs(attempt, 500, 5_000), signal))) throw error;
    }
  }
}

/** `ran`: this boot's guest may have run. `pristine`: no guest has, of this boot or another, since the suspend. */
async function bootCold<T>(
  options: ResumeOptions<T>,
  why: Reason,
  { ran, pristine }: { readonly ran: boolean; readonly pristine: boolean },
): Promise<T> {
  try {
    return await options.launchOnce({ run: true, cold: why }, ran);
  } catch (error) {
    throw pristine ? notResumed(options, error) : error;
  }
}

/** Before the overlay is touched: only if the memory is not consumed, the overlay holds nothing that a guest wrote since. */
async function requireUnconsumed<T>({ store, memory, consumer, signal }: ResumeOptions<T>): Promise<void> {
  const found = await consumerOf(store, memory.key, signal);
  if (found !== null && found !== consumer)
    throw new MemoryConsumedError(
      'Another start has consumed the memory; what its guest did since the suspend may be lost',
    );
}

/** The step is retried, with the memory: any boot would fail too, or only this one can still use it. */
export function isRetriedStep(error: unknown): boolean {
  return [ControlPlaneUnavailable, LeaseOverError, MayBeConsumedError].some(
    (again) => error instanceof again,
  );
}

/** No later try on this host could load it. */
function isUnusable(error: unknown): boolean {
  return [MemoryUnfitError, MemoryDamagedError, MemoryConsumedError, StreamRefusedError].some(
    (unusable) => error instanceof unusable,
  );
}

/** From a template of this host if one fits. Users see no difference. */
async function launchFast(launch: Launch): Promise<Machine> {
  const { context } = launch;
  try {
    return await launchMachine(launch, { run: true, fast: true });
  } catch (error) {
    if (!(error instanceof TemplateError)) throw error;
    context.log.warn({ reason: error.message }, 'the template failed; the VM boots');
    await context.templates.reject(error.template);
    return launchMachine(launch, { run: true });
  }
}

export function coldReason({ message }: Reason): Reason {
  return {
    code: 'cold_boot',
    message: `The VM could not be resumed and was booted from its disk; its memory is lost. ${message}`,
  };
}
