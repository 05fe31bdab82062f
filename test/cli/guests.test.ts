/** Commands in guests, the console log and metrics on the command line; the guest itself is in test/guest. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { ExecResult, VmSample } from '../../src/agent-api/host-calls.ts';
import { grown } from '../../src/cli/log-growth.ts';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const { agent } = api;
const who = await api.person();
const { key } = await makeKey(api.db, who, '*');
const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });
const { name } = await instanceIn(api, who, 'running');
const off = await api.instance(who);
const RESULT: ExecResult = { exit_code: 0, stdout: '', stderr: '', truncated: false };

async function exec(words: readonly string[], input: string | null, result: Partial<ExecResult>) {
  const running = cli.start(['exec', ...words], input);
  const { id, call } = await agent.nextCall('exec');
  await agent.client.answerCall({ id, answer: { result: { ...RESULT, ...result } } });
  return { call, ran: await running.ended };
}

describe('exec', () => {
  test('passes on arguments and stdin, and what the command printed and ended with, unchanged', async () => {
    const printed = { stdout: '\u001b[1mout ä\r\n', stderr: 'err\u0007', exit_code: 7 };
    const { call, ran } = await exec([name, '--', 'sh', '-c', 'cat; exit 7'], 'in ä\0', printed);
    assert.partialDeepStrictEqual(call, {
      ...{ command: ['sh', '-c', 'cat; exit 7'], stdin: 'in ä\0', timeout_ms: 60_000 },
    });
    assert.deepEqual(ran, { code: 7, out: printed.stdout, err: printed.stderr });
  });

  test('-n reads nothing, though stdin stays open; --json is what the API says', async () => {
    const { call, ran } = await exec(['-n', '--json', name, '--', 'true'], null, { stdout: 'x' });
    assert.equal(call.stdin, '');
    assert.deepEqual([ran.code, JSON.parse(ran.out)], [0, { ...RESULT, stdout: 'x' }]);
  });

  test('one that was killed at its timeout is 124, and what it printed by then is there', async () => {
    const words = [name, '--timeout', '5', '--', 'sleep', '9'];
    const { call, ran } = await exec(words, '', { exit_code: null, stdout: 'so far', truncated: true });
    assert.equal(call.timeout_ms, 5_000);
    assert.deepEqual([ran.code, ran.out], [124, 'so far']);
    assert.match(ran.err, /first MiB\nberth: .* after 5 s; it is killed\n$/);
  });

  test("goes by a fetch that waits, never by Node's own, which gives up on an answer's head after 300 s", async () => {
    const without_fetch = 'globalThis.fetch = () => Promise.reject(new Error("gave up"))';
    const env = {
      ...cli.env,
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(without_fetch)}`,
    };
    const running = new Cli(env).start(['exec', name, '--', 'sleep', '310']);
    const gave_up = running.ended.then(({ err }) => assert.fail(err));
    const { id } = await Promise.race([agent.nextCall('exec'), gave_up]);
    await agent.client.answerCall({ id, answer: { result: { ...RESULT, stdout: 'late\n' } } });
    const ran = await running.ended;
    assert.deepEqual([ran.code, ran.out, ran.err], [0, 'late\n', '']);
  });

  test('what cannot be run is told with what to type', async () => {
    assert.match(
      await cli.fails(5, 'exec', off.name, '--', 'true'),
      new RegExp(`next: berth start ${off.name}\n`),
    );
    assert.match(await cli.fails(2, 'exec', name), /the command is missing/);
    assert.match(await cli.fails(2, 'exec', name, '--timeout', '601', '--', 'x'), /--timeout takes 1 to 600/);
    const much = await cli.run(['exec', name, '--', 'cat'], 'x'.repeat(1024 * 1024 + 1));
    assert.deepEqual([much.code, much.err], [1, 'berth: there is more than 1 MiB on stdin\n']);
  });
});

describe('logs', () => {
  async function answerLog(max_kib: number, text: string): Promise<void> {
    const { id, call } = await agent.nextCall('console_log');
    assert.equal(call.max_bytes, max_kib * 1024);
    await agent.client.answerCall({ id, answer: { result: { text } } });
  }

  test('print the end of the console, to a pipe as it is', async () => {
    const reading = cli.start(['logs', name, '--tail', '3']);
    await answerLog(3, 'berth: \u001b[1mä\r\n');
    assert.deepEqual(await reading.ended, { code: 0, out: 'berth: \u001b[1mä\r\n', err: '' });
    const never = await cli.run(['logs', off.name]);
    assert.deepEqual([never.code, never.out], [0, '']);
    assert.match(
      never.err,
      new RegExp(`${off.name} has never run, .*\n {2}next: berth start ${off.name}\n$`),
    );
    assert.match(await cli.fails(2, 'logs', name, '--tail', '0'), /--tail takes 1 to 1024/);
  });

  test('on a terminal they do nothing but read', async () => {
    const reading = cli.onTerminal(['logs', name]);
    await answerLog(64, '\u001b]0;title\u0007\u001b[2J\u001b[0;32mOK\u001b[0m done\u009b\r\n');
    assert.equal((await reading.ended).out, 'OK done\r\n');
  });

  test('-f goes on with what has come, until Ctrl-C', async () => {
    const reading = cli.start(['logs', '-f', name]);
    await answerLog(64, 'one\ntwo');
    await answerLog(64, 'one\ntwo\nthree\n');
    await answerLog(64, 'two\nthree\nfour\n');
    await until('all of it is there', () => reading.out() === 'one\ntwo\nthree\nfour\n');
    reading.child.kill('SIGINT');
    assert.equal((await reading.ended).code, 130);
  });

  test('a log read by its end: what is new is told once, and nothing is left out', () => {
    const log = Array.from({ length: 300 }, (_, at) => `line ${at % 7 === 0 ? 'again' : at}\n`).join('');
    for (const window of [200, 500, 10_000]) {
      let out = '';
      let before = '';
      for (let end = 0; end <= log.length; end += 37) {
        const now = log.slice(Math.max(0, end - window), end);
        out += grown(before, now);
        before = now;
      }
      assert.equal(out, log.slice(0, out.length), `window ${window}`);
      assert.ok(out.length > log.length - 37);
    }
    assert.equal(grown('a\nb\n', 'x\ny\nz\n'), 'x\ny\nz\n', 'all is new');
  });
});

describe('metrics', () => {
  const sample = (minute: number, cpu_seconds: number): VmSample => ({
    at: new Date(Date.UTC(2026, 0, 1, 0, minute, 0)).toISOString(),
    cpu_seconds,
    memory: { host_bytes: 400 * 2 ** 20, used_bytes: minute === 11 ? 64 * 2 ** 20 : null, total_bytes: null },
    disk: { read_bytes: 1024, written_bytes: 2048, read_operations: 3, write_operations: 4 },
    network: { received_bytes: null, sent_bytes: 5 },
  });

  test('are a table of now and of every five minutes before', async () => {
    const asking = cli.start(['metrics', name]);
    const { id } = await agent.nextCall('metrics');
    const samples = Array.from({ length: 11 }, (_, minute) => sample(minute, minute * 6));
    const result = { now: sample(11, 66), interval_seconds: 60, samples };
    await agent.client.answerCall({ id, answer: { result } });
    const { out } = await asking.ended;
    const [head, ...rows] = out.trimEnd().split('\n');
    assert.match(head ?? '', /^AT +CPU +MEMORY +OF THE HOST +READ +WRITTEN +RECEIVED +SENT$/);
    assert.deepEqual(
      rows.map((row) => row.slice(3, 8)),
      ['01:00', '06:00', '11:00'],
    );
    assert.match(rows[2] ?? '', / \d+ % +64 MiB +400 MiB +1 KiB +2 KiB +- +5 B$/);
  });

  test('a VM that does not run has none', async () => {
    assert.match(await cli.fails(5, 'metrics', off.name), new RegExp(`next: berth start ${off.name}\n`));
  });
});
