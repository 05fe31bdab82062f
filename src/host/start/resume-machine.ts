/**
 * A boot that is given the memory of a suspended VM: it goes on from there, or, for whatever reason it cannot, boots cold
 * from the same generation of the disk and says why. Memory is loaded before the machine's first instruction, and a boot
 * whose guest has run once never loads it again.
 */
import { ControlPlaneUnavailable } from '../../agent-api/client.ts';
import type { Reason } from '../../agent-api/types.ts';
import { assert } from '../../lib/assert.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { LeaseOverError } from '../lease/host-lease.ts';
import { reasonFor } from '../machine/failure-reasons.ts';
import { QmpTimeoutError } from '../qmp/qmp-client.ts';
import { type Launch, type Launched, launchMachine } from './launch-machine.ts';
import { TemplateError } from './template-memory.ts';

/** What comes back by then keeps the memory worth waiting for. */
const PATIENCE_MS = 60_000;

/** @param cold why this boot is not to go on from its memory, or a template, as was found before */
export async function launchOrResume(launch: Launch, cold: Reason | null): Promise<Launched> {
  const { resume } = launch.assignment;
  if (!resume) return cold ? launchMachine(launch, { run: true, cold }) : launchFast(launch);
  assert(cold !== null || !launch.ran, 'a guest that has gone on never goes on from the same memory again');
  let why = cold;
  const deadline = performance.now() + PATIENCE_MS;
  for (let attempt = 0; why === null; attempt++) {
    try {
      return await launchMachine(launch, { run: true, memory: resume });
    } catch (error) {
      // Without the lease nothing boots either: all of it is tried again, with the memory.
      const again = error instanceof ControlPlaneUnavailable || error instanceof LeaseOverError;
      if (launch.signal.aborted || again) throw error;
      launch.context.log.warn(
        { err: error, instance_id: launch.assignment.instance_id },
        'the VM cannot be resumed',
      );
      // A QEMU that is silent before its guest is let go has lost nothing with its end: another one may answer.
      const passing = error instanceof ObjectStoreUnavailableError || error instanceof QmpTimeoutError;
      const patient = passing && performance.now() < deadline;
      if (patient && (await pause(backoffMs(attempt, 500, 5_000), launch.signal))) continue;
      why = coldReason(reasonFor(error, 'cold_boot'));
    }
  }
  const launched = await launchMachine(launch, { run: true, cold: why });
  return { ...launched, recovered: why };
}

/** From a template of this host if there is one that does. Nobody is told how: the guest is the same. */
async function launchFast(launch: Launch): Promise<Launched> {
  const { context } = launch;
  try {
    return await launchMachine(launch, { run: true, fast: true });
  } catch (error) {
    if (!(error instanceof TemplateError)) throw error;
    context.log.warn({ reason: error.message }, 'the template is of no use; the VM boots');
    await context.templates.reject(error.template);
    return launchMachine(launch, { run: true });
  }
}

export function coldReason({ message }: Reason): Reason {
  return {
    code: 'cold_boot',
    message: `The VM could not be resumed and was booted from its disk; what was in its memory is lost. ${message}`,
  };
}
