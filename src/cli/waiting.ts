/** Waiting with a progress line, that Ctrl-C ends without ending the server's work. */
import { type Berth, type Instance, type Vm, VmWaitError, type WaitedState } from '../../client/src/berth.ts';
import type { Call } from './command.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { bytes } from './words.ts';

export type Waited = Pick<Call, 'signal' | 'terminal'>;

function lineOf(doing: string, vm: Vm): string {
  const left = vm.disk.dirty_bytes;
  const saving = ['stopping', 'running'].includes(vm.state) && left > 0 ? `, ${bytes(left)} to save` : '';
  const reason = vm.reason?.code === 'flush_pending' ? `: ${vm.reason.message}` : '';
  return `${doing}: ${vm.state}${saving}${reason}`;
}

/** Runs `work` under a progress line. @param goes_on what the server does further once nobody waits */
export async function watched<T>(
  { signal, terminal }: Waited,
  doing: string,
  goes_on: string,
  look: string,
  work: (say: (vm: Vm) => void) => Promise<T>,
): Promise<T> {
  const progress = terminal.progress(doing);
  try {
    return await work((vm) => progress.say(lineOf(doing, vm)));
  } catch (error) {
    if (signal.aborted) {
      throw new CommandError(`not waiting any more; ${goes_on}`, { next: look, exit_code: EXIT.interrupted });
    }
    if (error instanceof VmWaitError) throw new CommandError(error.message, { next: look });
    throw error;
  } finally {
    progress.end();
  }
}

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
    (onVm) => berth.instances.waitFor(id, state, { signal: call.signal, onVm }),
  );
}
