/** Changes that need a stopped VM. A VM that is on is stopped for them, and started again if it ran. */
import { type Berth, BerthError, type Instance } from '../../client/src/berth.ts';
import type { Call } from './command.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { confirm } from './terminal.ts';
import { waitFor } from './waiting.ts';

/** The states that end in `running` by themselves: such a VM is started again. */
const RUNS: readonly Instance['vm']['state'][] = ['starting', 'running', 'restarting'];

export interface Change<T> {
  /** `restore generation 42`, for the question. */
  readonly doing: string;
  readonly work: () => Promise<T>;
}

export interface Changed<T> {
  readonly result: T;
  /** The VM was stopped for the change, and runs again. */
  readonly runs_again: boolean;
}

/** Tries the change first: only the server knows whether it needs a stopped VM. @throws CommandError, BerthError */
export async function whileStopped<T>(
  call: Call,
  berth: Berth,
  { id, name }: Instance,
  { doing, work }: Change<T>,
): Promise<Changed<T>> {
  try {
    return { result: await work(), runs_again: false };
  } catch (error) {
    if (!(error instanceof BerthError) || error.code !== 'CONFLICT') throw error;
    const { vm, deleting } = await berth.instances.get(id);
    if (vm.state === 'stopped' || deleting) throw error;
    const again = RUNS.includes(vm.state);
    const loses = vm.state === 'suspended' ? ' Its saved memory is dropped.' : '';
    if (vm.state !== 'stopping') {
      await confirm(call, {
        ask: `${name} is ${vm.state}. Stop it, ${doing}${again ? ', and start it again' : ''}?${loses}`,
        refusal: `${name} is ${vm.state}. To ${doing}, it must be stopped`,
        undone: `${name} was not changed`,
      });
    }
    return { result: await stopFor(call, berth, { id, name }, again, work), runs_again: again };
  }
}

async function stopFor<T>(
  call: Call,
  berth: Berth,
  instance: Pick<Instance, 'id' | 'name'>,
  again: boolean,
  work: () => Promise<T>,
): Promise<T> {
  await berth.instances.stopVm(instance.id);
  await waitFor(call, berth, instance, 'stopped', 'stopping');
  let result: T;
  try {
    result = await work();
  } catch (error) {
    // What ran before must run again, whatever the change's failure.
    if (again) await berth.instances.startVm(instance.id);
    throw error;
  }
  if (again) {
    await berth.instances.startVm(instance.id);
    await waitFor(call, berth, instance, 'running', 'starting').catch((cause: unknown) => {
      const reason = cause instanceof Error ? cause.message : String(cause);
      throw new CommandError(`${instance.name} is changed, but does not run yet: ${reason}`, {
        next: `berth show ${instance.name}`,
        exit_code: call.signal.aborted ? EXIT.interrupted : EXIT.failed,
      });
    });
  }
  return result;
}
