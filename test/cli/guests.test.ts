/** Commands in guests, the console log and metrics on the command line; the guest itself is in test/guest. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newPart } from '../../src/cli/commands/vms.ts';
import { insertSamples } from '../../src/control-plane/vms/metric-store.ts';
import { spreadsOf } from '../../src/host/calls/vm-meters.ts';
import type { ExecResult } from '../../src/protocol/host-calls.ts';
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
  const running = cli.start(['exec', '--json', ...words], input);
  const { id, call } = await agent.nextCall('exec');
  await agent.client.answerCall({ id, answer: { result: { ...RESULT, ...result } } });
  const ran = await running.ended;
  const told = JSON.parse(ran.out) as ExecResult;
  return { call, ran: { ...ran, out: told.stdout }, told };
}

describe('exec --json', () => {
  test('passes on arguments and stdin, and what the command printed and ended with, unchanged', async () => {
    const printed = { stdout: '\u001b[1mout ä\r\n', stderr: 'err\u0007', exit_code: 7 };
    const { call, ran, told } = await exec([name, '--', 'sh', '-c', 'cat; exit 7'], 'in ä\0', printed);
    assert.partialDeepStrictEqual(call, {
      ...{ command: ['sh', '-c', 'cat; exit 7'], stdin: 'in ä\0', timeout_ms: 60_000 },
    });
    assert.deepEqual([ran.code, told], [7, { ...RESULT, ...printed }]);
  });

  test('-n reads nothing, though stdin stays open; --json is what the API says', async () => {
    const { call, ran, told } = await exec(['-n', name, '--', 'true'], null, { stdout: 'x' });
    assert.equal(call.stdin, '');
    assert.deepEqual([ran.code, told], [0, { ...RESULT, stdout: 'x' }]);
  });

  test('the first word after NAME begins the command, whose options are its own', async () => {
    const { call } = await exec(['-n', name, '--timeout', '1m', 'ls', '-n', '--json', '--', 'x'], null, {});
    assert.partialDeepStrictEqual(call, {
      ...{ command: ['ls', '-n', '--json', '--', 'x'], stdin: '', timeout_ms: 60_000 },
    });
  });

  test('output that was cut at 1 MiB makes a success 125, and leaves any other exit code', async () => {
    const cut = await exec([name, 'cat', 'large'], '', { stdout: 'begin', truncated: true });
    assert.deepEqual([cut.ran.code, cut.ran.out], [125, 'begin']);
    assert.match(
      cut.ran.err,
      /^berth: the output was cut at 1 MiB; the command itself ended with exit code 0\n {2}next: the same without --json, which has no limit\n$/,
    );
    const failed = await exec([name, 'cat', 'large'], '', { exit_code: 3, truncated: true });
    assert.equal(failed.ran.code, 3);
    const json = await exec([name, 'cat', 'large'], '', { truncated: true });
    assert.equal(json.ran.code, 125);
  });

  test('one that was killed at its timeout is 124, and what it printed by then is there', async () => {
    const words = [name, '--timeout', '5s', '--', 'sleep', '9'];
    const { call, ran } = await exec(words, '', { exit_code: null, stdout: 'so far', truncated: true });
    assert.equal(call.timeout_ms, 5_000);
    assert.deepEqual([ran.code, ran.out], [124, 'so far']);
    assert.match(ran.err, /^berth: .* was killed after 5s: .*\nberth: the output was cut at 1 MiB\n/);
  });

  test("goes by a fetch that waits, never by Node's own, which gives up on an answer's head after 300 s", async () => {
    const without_fetch = 'globalThis.fetch = () => Promise.reject(new Error("gave up"))';
    const env = {
      ...cli.env,
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(without_fetch)}`,
    };
    const running = new Cli(env).start(['exec', '--json', name, '--', 'sleep', '310']);
    const gave_up = running.ended.then(({ err }) => assert.fail(err));
    const { id } = await Promise.race([agent.nextCall('exec'), gave_up]);
    await agent.client.answerCall({ id, answer: { result: { ...RESULT, stdout: 'late\n' } } });
    const ran = await running.ended;
    assert.deepEqual([ran.code, JSON.parse(ran.out).stdout, ran.err], [0, 'late\n', '']);
  });

  test('what cannot be run is told with what to type', async () => {
    assert.match(
      await cli.fails(5, 'exec', off.name, '--', 'true'),
      new RegExp(`next: berth start ${off.name}\n`),
    );
    assert.match(await cli.fails(2, 'exec', name), /COMMAND is missing/);
    assert.match(
      await cli.fails(2, 'exec', '--json', name, '--timeout', '601s', '--', 'x'),
      /--timeout takes 1s to 10m, not 601s/,
    );
    const much = await cli.run(['exec', '--json', name, '--', 'cat'], 'x'.repeat(1024 * 1024 + 1));
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
      new RegExp(`${off.name} never ran, so its console log is empty\n {2}next: berth start ${off.name}\n$`),
    );
    assert.match(await cli.fails(2, 'logs', name, '--tail', '0'), /--tail takes 1 to 1024/);
  });

  test('have the time of each line with --timestamps, and begin with a whole line', async () => {
    const reading = cli.start(['logs', name, '-ft', '--tail', '1']);
    const { id, call } = await agent.nextCall('console_log');
    assert.equal(call.timestamps, true);
    const line = (nth: number) => `2026-11-25T09:12:00.${String(nth).padStart(3, '0')}Z line ${nth}\n`;
    const text = Array.from({ length: 100 }, (_, nth) => line(nth)).join('');
    await agent.client.answerCall({ id, answer: { result: { text } } });
    await until('the end of it is there', () => reading.out().endsWith(line(99)));
    assert.match(reading.out(), /^2026\S+ line 69\n/);
    assert.ok(reading.out().length <= 1024);
    reading.child.kill('SIGINT');
    await reading.ended;
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
        out += newPart(before, now);
        before = now;
      }
      assert.equal(out, log.slice(0, out.length), `window ${window}`);
      assert.ok(out.length > log.length - 37);
    }
    assert.equal(newPart('a\nb\n', 'x\ny\nz\n'), 'x\ny\nz\n', 'all is new');
  });
});

describe('metrics', () => {
  test('are the least, the mean, the most and the last of a range, and a line of its course', async () => {
    const minute_ms = Math.floor(Date.now() / 60_000) * 60_000;
    const of = (value: number) => ({ mean: value, min: value / 2, max: value * 2 });
    const at = (minutes_ago: number, value: number) => ({
      ...{ instance_id: off.id, at_ms: minute_ms - minutes_ago * 60_000, minutes: 1 },
      spreads: {
        ...spreadsOf([]),
        cpu: of(value / 4),
        memory_host: of(value * 2 ** 20),
        network_sent: of(value * 1024),
      },
    });
    await insertSamples(api.db, 60, [at(50, 0), at(40, 1), at(10, 2)]);
    const out = await cli.done('metrics', off.name);
    const [head = '', headings = '', ...rows] = out.trimEnd().split('\n');
    const time = '20\\d\\d-\\d\\d-\\d\\d \\d\\d:\\d\\d';
    assert.match(head, new RegExp(`^${off.name} from ${time} to ${time}: ran 3 min$|ran 180 s$`));
    assert.match(headings, /^METRIC +MIN +AVG +MAX +LAST +TREND$/);
    const row = (name: string) => rows.find((each) => each.startsWith(name)) ?? assert.fail(out);
    assert.match(row('cpu'), /^cpu +0 % +25 % +100 % +50 % +▁ +▅ +█$/);
    assert.match(row('host memory'), /^host memory +0 B +1 MiB +4 MiB +2 MiB +▁/);
    assert.match(row('network sent'), /^network sent +0 B\/s +1 KiB\/s +4 KiB\/s +2 KiB\/s +▁/);
    assert.match(row('memory'), /^memory +- +- +- +-$/);
    const { range, samples } = JSON.parse(await cli.done('metrics', off.name, '--range', '24h', '--json'));
    assert.deepEqual([range, samples.length], ['24h', 3]);
  });

  test('of an instance that did not run say so, and a range that is not one is refused', async () => {
    const { name: never } = await api.instance(who);
    assert.match(
      await cli.done('metrics', never),
      new RegExp(`^${never} has never run, so nothing was measured\\.\n {2}next: berth start ${never}\n$`),
    );
    assert.match(
      await cli.fails(2, 'metrics', never, '--range', '2h'),
      /--range takes 1h, 6h, 24h, 7d or 30d, not 2h/,
    );
  });
});

describe('top', () => {
  const sample = (at_ms: number, of: { cpu_seconds: number; written: number; sent: number | null }) => ({
    at: new Date(at_ms).toISOString(),
    cpu_seconds: of.cpu_seconds,
    memory: { host_bytes: 300 * 2 ** 20, used_bytes: 100 * 2 ** 20, total_bytes: 512 * 2 ** 20 },
    disk: { read_bytes: 0, written_bytes: of.written, read_operations: 0, write_operations: 0 },
    network: { received_bytes: null, sent_bytes: of.sent },
  });
  const answerMetrics = async (now: ReturnType<typeof sample>) => {
    const { id } = await agent.nextCall('metrics');
    const result = { now, interval_seconds: 10, samples: [] };
    await agent.client.answerCall({ id, answer: { result } });
  };

  test('shows rates between two samples, once without a terminal', async () => {
    for (const options of [[], ['--json']]) {
      const running = cli.start(['top', ...options], null);
      await answerMetrics(sample(1_000_000, { cpu_seconds: 10, written: 0, sent: 5000 }));
      await answerMetrics(sample(1_004_000, { cpu_seconds: 13, written: 8192, sent: 1000 }));
      const { code, out } = await running.ended;
      assert.equal(code, 0);
      if (options.length > 0) {
        const [use] = JSON.parse(out);
        assert.deepEqual([use.name, use.cpu, use.written_bytes], [name, 0.75, 2048]);
        continue;
      }
      assert.deepEqual(
        out
          .trimEnd()
          .split('\n')
          .map((line) => line.split(/ {2,}/)),
        [
          ['NAME', 'CPU', 'MEMORY', 'READ', 'WRITTEN', 'RECEIVED', 'SENT'],
          [name, '75 %', '100 MiB', '0 B/s', '2 KiB/s', '-', '0 B/s'],
        ],
      );
    }
  });

  test('says so when no VM runs', async () => {
    const nobody = await api.person();
    const idle = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: (await makeKey(api.db, nobody, '*')).key });
    assert.equal(await idle.done('top'), 'No VM is running. Start one: berth start NAME\n');
  });
});
