/** Waits for a VM's state for less than clients wait for an answer, which is a minute with most. */
import { type Berth, type Instance, type Vm, VmWaitError } from '../../client/src/berth.ts';
import { toolErrorText } from './tool-errors.ts';

export const PATIENCE_MS = 45_000;

export interface Waited {
  readonly vm: Vm;
  readonly reached: boolean;
}

/** @throws VmWaitError if it failed, or will not reach the state by itself */
export async function waitForVm(
  berth: Berth,
  { id }: Pick<Instance, 'id'>,
  state: 'running' | 'stopped' | 'suspended',
  signal: AbortSignal,
): Promise<Waited> {
  const options = { begun: true, timeout_ms: PATIENCE_MS, signal };
  try {
    return { vm: await berth.instances.waitFor(id, state, options), reached: true };
  } catch (error) {
    const on_its_way = error instanceof VmWaitError && TRANSIENT.has(error.vm.state);
    if (!on_its_way) throw error;
    return { vm: error.vm, reached: false };
  }
}

const TRANSIENT: ReadonlySet<Vm['state']> = new Set(['starting', 'restarting', 'stopping', 'suspending']);

/** Of a VM that runs as it should. Another reason says what the caller must know: what was lost, or what is wrong. */
const EXPECTED: ReadonlySet<string> = new Set(['ready', 'resumed']);

/** Starts an instance that was just made. A failure is part of the sentence, because the instance exists nevertheless. */
export function startNew(berth: Berth, instance: Instance, signal: AbortSignal): Promise<string> {
  return startAndTell(berth, instance, signal).catch((error: unknown) => {
    signal.throwIfAborted();
    return `It is there, but does not run. ${toolErrorText(error)}`;
  });
}

/** Starts or resumes it. @returns a sentence about it */
export async function startAndTell(berth: Berth, instance: Instance, signal: AbortSignal): Promise<string> {
  const { id, name } = instance;
  await berth.instances.startVm(id, { signal });
  const { vm, reached } = await waitForVm(berth, instance, 'running', signal);
  if (!reached) return `${name} is still ${vm.state}. Call start_instance again to go on waiting.`;
  const is_news = vm.reason !== null && !EXPECTED.has(vm.reason.code);
  return `${name} is running.${is_news ? ` ${vm.reason?.message} (${vm.reason?.code})` : ''}`;
}
