/** Calls that need a stopped VM. */
import { type Berth, BerthError, type Instance } from '../../client/src/berth.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';

/** Adds the stop command to a refusal because the VM is not stopped. */
export async function whileStopped<T>(
  berth: Berth,
  { id, name }: Instance,
  work: () => Promise<T>,
): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof BerthError) || error.code !== 'CONFLICT') throw error;
    const { vm, deleting } = await berth.instances.get(id);
    const next = vm.state === 'stopped' || deleting ? null : `berth stop ${name}`;
    throw new CommandError(error.message, { next, exit_code: EXIT.state });
  }
}
