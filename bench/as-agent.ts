/**
 * Runs a benchmark of the agent's code in a new process, with the options of Node with which the agent starts. They
 * decide how memory is returned to the system, and that costs a flush more time than encryption does.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { AGENT_ENV, AGENT_FLAGS, compiledSources } from '../src/launcher/machine.ts';
import type { HostBench, HostContext, Measured } from './figure.ts';

/** The argument of `agent-program.ts`. */
export type AgentTask = { readonly name: string } & Pick<HostContext, 'scratch_dir' | 'image_dir' | 'runs'>;
/** Its single message. */
export type AgentAnswer = { readonly measured: readonly Measured[] } | { readonly error: string };

const PROGRAM = join(import.meta.dirname, 'agent-program.ts');

/** Runs the benchmark in a new process. */
export function asAgent({ name, summary }: HostBench): HostBench {
  return { name, summary, alone: true, run: (context) => runAsAgent(name, context) };
}

async function runAsAgent(
  name: string,
  { scratch_dir, image_dir, runs, signal }: HostContext,
): Promise<readonly Measured[]> {
  const task: AgentTask = { name, scratch_dir, image_dir, runs };
  const env = { ...(await compiledSources(join(import.meta.dirname, '..'), process.env)), ...AGENT_ENV };
  signal.throwIfAborted();
  const child = fork(PROGRAM, [JSON.stringify(task)], { execArgv: [...AGENT_FLAGS], env });
  const stop = () => child.kill('SIGTERM');
  signal.addEventListener('abort', stop, { once: true });
  let answer: AgentAnswer | undefined;
  child.once('message', (message) => {
    answer = message as AgentAnswer;
  });
  const [code, killed_by] = await once(child, 'exit');
  signal.removeEventListener('abort', stop);
  signal.throwIfAborted();
  if (answer && 'measured' in answer) return answer.measured;
  throw new Error(answer?.error ?? `${name} ended with ${killed_by ?? code}`);
}
