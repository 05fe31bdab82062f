import assert from 'node:assert/strict';
import { test } from 'node:test';
import { pause } from '../../shared/retry.ts';
import { type AgentCallOptions, GuestAgentError, GuestAgentTimeoutError } from './guest-agent.ts';
import { guestExec, readGuestFile, watchGuestFile } from './guest-commands.ts';

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
  return { agent, waits };
}

test('a lost answer does not block other calls for as long as the command may run', async () => {
  const { agent, waits } = guest((nth) => {
    if (nth === 1) throw new GuestAgentTimeoutError('lost');
    return { exited: true, exitcode: 7 };
  });
  const { exit_code } = await guestExec(agent, { path: 'true', timeout_ms: 600_000 });
  assert.deepEqual([exit_code, waits.length], [7, 2]);
  for (const wait_ms of waits) assert(wait_ms !== undefined && wait_ms <= 60_000, `${wait_ms}`);
});

test('a guest that never answers is a timeout', async () => {
  const timeout_ms = 200;
  const { agent } = guest(async () => {
    await pause(timeout_ms + 50);
    throw new GuestAgentTimeoutError('silent');
  });
  const command = { path: 'true', timeout_ms, own_session: true };
  await assert.rejects(guestExec(agent, command), GuestAgentTimeoutError);
});

/** A growing file: as with qemu-ga, each read returns the bytes since the last read. */
function growing(parts: readonly string[]) {
  const seen: string[] = [];
  const left = [...parts];
  const agent = {
    execute: async (command: string) => {
      seen.push(command);
      if (command !== 'guest-file-read') return 7;
      return { 'buf-b64': Buffer.from(left.shift() ?? '').toString('base64'), eof: true };
    },
  };
  const signal = new AbortController().signal;
  const watch = { max_bytes: 10, poll_ms: 1, until: performance.now() + 20_000, signal };
  return { agent, seen, watch };
}

test('a growing file is read until it holds the awaited text, and closed', async () => {
  const { agent, seen, watch } = growing(['be', '', 'rth']);
  const done = (held: Buffer) => held.toString() === 'berth';
  assert.equal(await watchGuestFile(agent, '/log', { ...watch, done }), true);
  const reads = Array(3).fill('guest-file-read');
  assert.deepEqual(seen, ['guest-file-open', ...reads, 'guest-file-close']);
});

test('watching a file ends when it holds too much, or at the deadline', async () => {
  const long = growing(['123456', '7890AB', 'C']);
  assert.equal(await watchGuestFile(long.agent, '/log', { ...long.watch, done: () => false }), false);
  assert.equal(long.seen.filter((each) => each === 'guest-file-read').length, 2);
  const { agent, watch, seen } = growing([]);
  const until = performance.now() + 20;
  assert.equal(await watchGuestFile(agent, '/log', { ...watch, until, done: () => false }), false);
  assert.equal(seen.at(-1), 'guest-file-close');
});

test('a file is closed even if its reader’s time ends while the guest is frozen', async () => {
  const seen: [string, number | undefined][] = [];
  const agent = {
    execute: async (command: string, _: unknown, { timeout_ms }: AgentCallOptions) => {
      seen.push([command, timeout_ms]);
      if (command === 'guest-file-open') return 7;
      if (command === 'guest-file-read') throw new GuestAgentTimeoutError('late');
      if (seen.length < 5) throw new GuestAgentError(command, 'the agent is in frozen state');
      return {};
    },
  };
  await assert.rejects(readGuestFile(agent, '/log', 10, { timeout_ms: 50 }), GuestAgentTimeoutError);
  assert.deepEqual(
    seen.map(([command]) => command.slice('guest-file-'.length)),
    ['open', 'read', 'close', 'close', 'close'],
  );
  // Its answer is the handle, without which nobody can close it.
  assert.equal(seen[0]?.[1], 5_000);
});
