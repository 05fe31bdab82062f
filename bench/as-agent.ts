/**
 * Benchmarks of code that only the agent runs are measured in a process that is started as the agent is: how it gives memory
 * back costs a flush more than encryption does.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { AGENT_ENV, AGENT_FLAGS, compiledSources } from '../src/launch/agent-memory.ts';
import type { Bench, HostContext, Measured } from './figure.ts';

export interface AgentBench {
  readonly name: string;
  readonly summary: string;
  readonly run: (context: HostContext) => Promise<readonly Measured[]>;
}

/** What `agent-program.ts` is told. */
export type AgentTask = { readonly name: string } & Pick<HostContext, 'scratch_dir' | 'image_dir' | 'runs'>;
/** What it answers, once. */
export type AgentAnswer = { readonly measured: readonly Measured[] } | { readonly error: string };

const PROGRAM = join(import.meta.dirname, 'agent-program.ts');

/** The benchmark in a process of its own. */
export function asAgent({ name, summary }: AgentBench): Bench {
  return { name, summary, run: (context) => runAsAgent(name, context) };
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
