/** What runs a user's command in a guest, as it is, by a stand-in of the guest's agent that runs it here. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readSync,
  rmSync,
  statSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { GuestAgentError, type GuestCommands } from '../../src/host/guest/guest-agent.ts';
import { runUserCommand } from '../../src/host/guest/user-command.ts';
import { present } from '../../src/shared/assert.ts';
import { until } from '../support/waiting.ts';

const MAX = 100_000;
const LINE_BYTES = 64 * 1024;
const BUSYBOX = present(
  ['/usr/bin/busybox', '/bin/busybox'].find((path) => existsSync(path)),
  'busybox',
);

/** As qemu-ga: a command has ended when its process has and all who hold its pipes. */
class Guest {
  readonly folder = mkdtempSync(join(tmpdir(), 'berth-exec-'));
  readonly #running = new Map<
    number,
    { child: ChildProcess; out: Buffer[]; err: Buffer[]; ended: boolean }
  >();
  longest_reply = 0;

  constructor(t: TestContext) {
    t.after(() => {
      for (const pid of this.#running.keys()) {
        try {
          process.kill(-pid, 'SIGKILL');
        } catch {
          // It has ended.
        }
      }
      rmSync(this.folder, { recursive: true, force: true });
    });
  }

  get agent(): GuestCommands {
    return this;
  }
  get files(): string[] {
    return readdirSync(this.folder);
  }

  async execute(command: string, args: Record<string, unknown>): Promise<unknown> {
    const reply = this.#answer(command, args);
    this.longest_reply = Math.max(this.longest_reply, JSON.stringify({ return: reply }).length);
    return reply;
  }

  #answer(command: string, args: Record<string, unknown>): unknown {
    switch (command) {
      case 'guest-exec':
        return { pid: this.#start(args) };
      case 'guest-exec-status': {
        const { child, out, err, ended } = present(this.#running.get(Number(args['pid'])), 'command');
        if (!ended) return { exited: false };
        const [out_data, err_data] = [out, err].map((parts) => Buffer.concat(parts).toString('base64'));
        const how = child.exitCode === null ? { signal: 9 } : { exitcode: child.exitCode };
        return { exited: true, ...how, 'out-data': out_data, 'err-data': err_data };
      }
      case 'guest-file-open': {
        try {
          return openSync(this.#here(String(args['path'])), 'r');
        } catch {
          throw new GuestAgentError(command, 'No such file or directory');
        }
      }
      case 'guest-file-read': {
        const piece = Buffer.alloc(Number(args['count']));
        const bytes = readSync(Number(args['handle']), piece);
        return {
          count: bytes,
          'buf-b64': piece.subarray(0, bytes).toString('base64'),
          eof: bytes < piece.length,
        };
      }
      case 'guest-file-close':
        closeSync(Number(args['handle']));
        return {};
    }
    throw new Error(command);
  }

  #start(args: Record<string, unknown>): number {
    const words = (args['arg'] as string[]).map((word) => this.#here(word));
    const child = spawn(this.#here(String(args['path'])), words, { cwd: '/' });
    const run = { child, out: [] as Buffer[], err: [] as Buffer[], ended: false };
    child.stdout.on('data', (chunk: Buffer) => run.out.push(chunk));
    child.stderr.on('data', (chunk: Buffer) => run.err.push(chunk));
    child.on('close', () => {
      run.ended = true;
    });
    child.stdin.on('error', () => undefined);
    child.stdin.end(Buffer.from(String(args['input-data'] ?? ''), 'base64'));
    const pid = present(child.pid, 'pid');
    this.#running.set(pid, run);
    return pid;
  }

  #here(word: string): string {
    return word
      .replaceAll('/usr/lib/berth/busybox', BUSYBOX)
      .replaceAll('/run/berth/exec-', `${this.folder}/exec-`);
  }
}

async function run(guest: Guest, script: string, { timeout_ms = 60_000, input = '' } = {}) {
  const result = await runUserCommand(guest.agent, {
    ...{ path: 'sh', args: ['-c', script, 'x', 'a "b" $c'], input, timeout_ms, max_output_bytes: MAX },
    signal: new AbortController().signal,
  });
  return { ...result, stdout: result.stdout.toString('latin1'), stderr: result.stderr.toString('latin1') };
}

test('a command gets its input, arguments and environment, and its exit code is returned', async (t) => {
  const guest = new Guest(t);
  const script = 'cat; echo "$1" >&2; env | grep -E "^(OLDPWD|SHLVL)=[^1]"; umask; exit 7';
  const ended = await run(guest, script, { input: 'in\n' });
  assert.deepEqual(ended, {
    ...{ exit_code: 7, signal: null, truncated: false, timed_out: false },
    ...{ stdout: 'in\n0022\n', stderr: 'a "b" $c\n' },
  });
  assert.deepEqual((await run(guest, 'kill -KILL $$')).signal, 9);
  const none = { path: '/no/such', args: [], input: '', timeout_ms: 60_000, max_output_bytes: MAX };
  const missing = await runUserCommand(guest.agent, { ...none, signal: new AbortController().signal });
  assert.deepEqual([missing.exit_code, /no\/such/.test(String(missing.stderr))], [127, true]);
  await until('nothing of it is left', () => guest.files.length === 0);
});

for (const bytes of [0, 1, 16_383, 16_384, 16_385, MAX, MAX + 1, 3_000_000]) {
  test(`of ${bytes} bytes of each stream all kept bytes are returned, in replies that fit`, async (t) => {
    const guest = new Guest(t);
    const print = (fd: number) => `head -c ${bytes} /dev/zero | tr '\\0' ${fd} >&${fd}`;
    const ended = await run(guest, `(${print(1)}) & (${print(2)}); wait; exit 3`);
    const kept = Math.min(bytes, MAX);
    assert.equal(ended.stdout, '1'.repeat(kept));
    assert.equal(ended.stderr, '2'.repeat(kept));
    assert.deepEqual([ended.exit_code, ended.truncated, ended.timed_out], [3, bytes > MAX, false]);
    assert.ok(guest.longest_reply < LINE_BYTES, `${guest.longest_reply}`);
    await until('nothing of it is left', () => guest.files.length === 0);
  });
}

test('a command that times out is killed with its session, and its output until then is returned', async (t) => {
  const guest = new Guest(t);
  const script = 'echo begun; head -c 50000 /dev/zero >&2; sleep 4321 & sleep 4321';
  const ended = await run(guest, script, { timeout_ms: 1_500 });
  assert.deepEqual([ended.timed_out, ended.stdout, ended.stderr.length], [true, 'begun\n', 50_000]);
  await until('nothing of it is left', () => guest.files.length === 0);
});

test('a command whose child keeps its output open ends with that child', async (t) => {
  const guest = new Guest(t);
  const ended = await run(guest, 'echo one; (sleep 0.3; echo two) & exit 4');
  assert.deepEqual([ended.exit_code, ended.stdout], [4, 'one\ntwo\n']);
});

test('a command without disk space for its output fails and is not started', async (t) => {
  const guest = new Guest(t);
  rmSync(guest.folder, { recursive: true });
  await assert.rejects(run(guest, 'true'), GuestAgentError);
  assert.throws(() => statSync(guest.folder));
});
