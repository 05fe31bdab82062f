/** A host whose guests' files are those of this machine: file-tasks.pl runs here, as the supervisor runs it in a guest. */
import { wordsOf } from '../../src/host/calls/exec-calls.ts';
import { present } from '../../src/shared/assert.ts';
import { FileTask } from './file-task.ts';
import type { ScriptedAgent } from './scripted-agent.ts';

/** Serves one request after the other, until the returned function is called. */
export function serveGuestFiles(agent: ScriptedAgent): () => void {
  const ended = new AbortController();
  const serve = async () => {
    const { id, call } = await agent.nextCall('file', ended.signal);
    const [verb = '', ...words] = wordsOf(call.action);
    const line = await agent.client.openConsole(id);
    // Started only now: what a child has said is lost if it ends before anybody reads.
    const { child } = new FileTask(String(verb), ...words);
    line.on('error', () => line.destroy());
    line.once('close', () => child.kill());
    line.pipe(present(child.stdin, 'stdin'));
    present(child.stdout, 'stdout').pipe(line);
  };
  const loop = async () => {
    while (!ended.signal.aborted) await serve();
  };
  loop().catch((error: unknown) => {
    if (!ended.signal.aborted) throw error;
  });
  return () => ended.abort();
}
