/** Waits with a progress line. Ctrl-C ends the wait, not the server's work. */
import { type Berth, type Instance, type Vm, VmWaitError, type WaitedState } from '../../client/src/berth.ts';
import type { Call } from './command.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { bar, bytes } from './table.ts';

export type Waited = Pick<Call, 'signal' | 'terminal'>;

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
  { signal, terminal }: Waited,
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
  call: Waited,
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
