/**
 * Waits for a VM with a progress line. `whileStopped` makes a change that needs a stopped VM: it stops the VM if it
 * must, and starts it again afterwards. Ctrl-C ends the wait; the server continues its work.
 */
import {
  type Berth,
  BerthError,
  type Instance,
  type Vm,
  VmWaitError,
  type WaitedState,
} from '../../client/src/berth.ts';
import type { Call } from './command.ts';
import { CommandError, EXIT } from './command-error.ts';
import { bar, bytes } from './table.ts';
import { confirm } from './terminal.ts';

export type Waiting = Pick<Call, 'signal' | 'terminal'>;

/** `[#######-------------] 12 MiB unsaved`; no bar before any progress. */
function savingLine(left_bytes: number, most_bytes: number): string {
  const left = `${bytes(left_bytes)} unsaved`;
  return most_bytes > left_bytes ? `, ${bar((most_bytes - left_bytes) / most_bytes)} ${left}` : `, ${left}`;
}

/** Progress of a flush. It remembers the largest amount to save. */
function lines(doing: string): (vm: Vm) => string {
  const [verb] = doing.split(' ', 1);
  let most_bytes = 0;
  return ({ disk, state, reason }) => {
    const left_bytes = disk.dirty_bytes;
    most_bytes = Math.max(most_bytes, left_bytes);
    const saves = ['stopping', 'running'].includes(state) && left_bytes > 0;
    const why = reason?.code === 'flush_pending' ? `: ${reason.message}` : '';
    const now = state === verb ? '' : `: ${state}`;
    return `${doing}${now}${saves ? savingLine(left_bytes, most_bytes) : ''}${why}`;
  };
}

/** Runs `work` under a progress line. @param goes_on what the server continues after Ctrl-C */
export async function watched<T>(
  { signal, terminal }: Waiting,
  doing: string,
  goes_on: string,
  look: string,
  work: (say: (vm: Vm) => void) => Promise<T>,
): Promise<T> {
  const progress = terminal.progress(doing);
  const lineOf = lines(doing);
  try {
    return await work((vm) => progress.say(lineOf(vm)));
  } catch (error) {
    if (signal.aborted) {
      throw new CommandError(`stopped waiting; ${goes_on}`, { next: look, exit_code: EXIT.interrupted });
    }
    if (error instanceof VmWaitError) throw new CommandError(error.message, { next: look });
    throw error;
  } finally {
    progress.end();
  }
}

/** Waits for a state that was just requested. */
export function waitFor(
  call: Waiting,
  berth: Berth,
  { id, name }: Pick<Instance, 'id' | 'name'>,
  state: WaitedState,
  doing: string,
): Promise<Vm> {
  return watched(
    call,
    `${doing} ${name}`,
    `the server goes on ${doing} ${name}`,
    `berth show ${name}`,
    (onVm) => berth.instances.waitFor(id, state, { begun: true, signal: call.signal, onVm }),
  );
}

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
