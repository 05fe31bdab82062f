import assert from 'node:assert/strict';
import { test } from 'node:test';
import { pause } from '../../lib/backoff.ts';
import { GuestAgentTimeoutError } from './agent-errors.ts';
import type { AgentCallOptions, GuestAgent } from './guest-agent.ts';
import { guestExec } from './guest-files.ts';

/** Answers the nth question for a command’s status so. */
function guest(status: (nth: number) => unknown) {
  const waits: (number | undefined)[] = [];
  const agent = {
    execute: async (command: string, _: unknown, options: AgentCallOptions) => {
      if (command === 'guest-exec') return { pid: 1 };
      waits.push(options.timeout_ms);
      return status(waits.length);
    },
  };
  return { agent: agent as unknown as GuestAgent, waits };
}

test('an answer that was lost does not keep all other calls waiting for as long as the command may run', async () => {
  const { agent, waits } = guest((nth) => {
    if (nth === 1) throw new GuestAgentTimeoutError('lost');
    return { exited: true, exitcode: 7 };
  });
  const { exit_code } = await guestExec(agent, { path: 'true', timeout_ms: 600_000 });
  assert.deepEqual([exit_code, waits.length], [7, 2]);
  for (const wait_ms of waits) assert(wait_ms !== undefined && wait_ms <= 60_000, `${wait_ms}`);
});

test('a guest that is silent to the end is told as that', async () => {
  const timeout_ms = 200;
  const { agent } = guest(async () => {
    await pause(timeout_ms + 50);
    throw new GuestAgentTimeoutError('silent');
  });
  const command = { path: 'true', timeout_ms, own_session: true };
  await assert.rejects(guestExec(agent, command), GuestAgentTimeoutError);
});
