/** Runs one benchmark for `as-agent.ts`. Its argument describes the benchmark; it sends the result over IPC, and exits. */
import type { AgentAnswer, AgentTask } from './as-agent.ts';
import { backupBench } from './backup.ts';
import { permissionsBench } from './permissions.ts';

const { name, ...about } = JSON.parse(process.argv[2] ?? '') as AgentTask;
const stop = new AbortController();
for (const event of ['SIGINT', 'SIGTERM', 'SIGHUP', 'disconnect'] as const) {
  process.on(event, () => stop.abort(new Error(`${event}: stopped before the end`)));
}

async function measure(): Promise<AgentAnswer> {
  const bench = [backupBench, permissionsBench].find((each) => each.name === name);
  try {
    if (!bench) throw new Error(`no benchmark ${name} runs as the agent`);
    const say = (line: string) => process.stderr.write(`${line}\n`);
    return { measured: await bench.run({ ...about, signal: stop.signal, say }) };
  } catch (error) {
    return { error: error instanceof Error ? (error.stack ?? error.message) : String(error) };
  }
}

const answer = await measure();
// Exits even if a failure has left something open.
process.send?.(answer, () => process.exit());
