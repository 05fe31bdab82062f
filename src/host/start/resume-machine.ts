/**
 * Launches a boot: resumed from the memory of a suspended VM if it has one, else from a template, else by booting. A resume that
 * fails boots cold from the same generation and reports why.
 *
 * Invariant: memory is loaded before the machine's first instruction. A boot whose guest has run never loads it again.
 */
import { ControlPlaneUnavailable } from '../../agent-api/client.ts';
import type { Reason } from '../../agent-api/types.ts';
import { assert } from '../../lib/assert.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { LeaseOverError } from '../lease/host-lease.ts';
import { reasonFor } from '../machine/failure-reasons.ts';
import type { Machine } from '../machine/machine.ts';
import { QmpTimeoutError } from '../qmp/qmp-client.ts';
import { type Launch, launchMachine } from './launch-machine.ts';
import { TemplateError } from './template-memory.ts';

/** How long a passing failure is retried before the memory is given up. */
const PATIENCE_MS = 60_000;

/** @param cold why an earlier try found that this boot must boot */
export async function launchOrResume(launch: Launch, cold: Reason | null): Promise<Machine> {
  const { resume } = launch.assignment;
  if (!resume) return cold ? launchMachine(launch, { run: true, cold }) : launchFast(launch);
  assert(cold !== null || !launch.ran, 'a guest that has run is never resumed from the same memory again');
  let why = cold;
  const deadline = performance.now() + PATIENCE_MS;
  for (let attempt = 0; why === null; attempt++) {
    try {
      return await launchMachine(launch, { run: true, memory: resume });
    } catch (error) {
      // A cold boot would fail too: the step is retried, with the memory.
      const again = error instanceof ControlPlaneUnavailable || error instanceof LeaseOverError;
      if (launch.signal.aborted || again) throw error;
      launch.context.log.warn(
        { err: error, instance_id: launch.assignment.instance_id },
        'the VM cannot be resumed',
      );
      // A silent QEMU whose guest has not run loses nothing: another one may answer.
      const passing = error instanceof ObjectStoreUnavailableError || error instanceof QmpTimeoutError;
      const patient = passing && performance.now() < deadline;
      if (patient && (await pause(backoffMs(attempt, 500, 5_000), launch.signal))) continue;
      why = coldReason(reasonFor(error, 'cold_boot'));
    }
  }
  return launchMachine(launch, { run: true, cold: why });
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
