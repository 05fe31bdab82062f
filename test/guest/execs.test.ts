/**
 * Execs in a whole installation: the command line, the API and a real guest, with kills in the middle of output. Its own
 * installation, because it kills roles. One story: each test continues where the previous one ended.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import { readFirstLogin } from '../../src/launcher/data-folder.ts';
import { Cli, type Running } from '../support/cli.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { until } from '../support/waiting.ts';

interface ExecBody {
  readonly id: string;
  readonly state: string;
  readonly exit_code: number | null;
  readonly signal: string | null;
  readonly timed_out: boolean;
  readonly output_bytes: number;
}

/** Numbers, a line each, with a pause at every hundredth: long enough to be killed in its middle. */
const COUNT = (to: number) =>
  `i=0; while [ $i -lt ${to} ]; do i=$((i+1)); echo $i; [ $((i%100)) != 0 ] || sleep 0.2; done; exit 5`;
const numbers = (to: number) => Array.from({ length: to }, (_, index) => `${index + 1}\n`).join('');

describe('execs of an installation', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  const cli = new Cli();

  const exec = (line: string, ...more: string[]) => cli.start(['exec', ...more, 'web', 'sh', '-c', line]);
  const create = (line: string, more: object = {}) =>
    berth.client.expect<ExecBody>(201, 'POST', `${guest.path}/execs`, {
      command: ['sh', '-c', line],
      ...more,
    });
  const show = ({ id }: ExecBody) => berth.client.expect<ExecBody>(200, 'GET', `${guest.path}/execs/${id}`);
  const ended = (of: ExecBody) =>
    until('it has ended', async () => {
      const seen = await show(of);
      return seen.state !== 'running' && seen;
    });
  const outputOf = ({ id }: ExecBody) =>
    berth.client.expect<string>(200, 'GET', `${guest.path}/execs/${id}/output`);
  const prints = (running: Running, text: string) =>
    until(`it prints ${JSON.stringify(text)}`, () => running.out().includes(text), { timeout_ms: 60_000 });

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'web');
    cli.env['BERTH_URL'] = berth.origin;
    cli.env['BERTH_DATA_DIR'] = berth.data_dir;
    const login = await readFirstLogin(berth.paths);
    const { code, err } = await cli.run(['login', '--password-stdin'], login?.password);
    assert.equal(code, 0, err);
  });
  after(() => berth?.dispose());

  test('berth exec passes input, both outputs and the exit code; a signal is 128 and its number', async () => {
    const ran = await cli.run(['exec', 'web', 'sh', '-c', 'cat; echo problem >&2; exit 7'], 'in ä\n');
    assert.deepEqual(ran, { code: 7, out: 'in ä\n', err: 'problem\n' });
    assert.equal((await exec('kill -TERM $$').ended).code, 128 + 15);
    assert.equal((await cli.run(['exec', 'web', '/no/such/program'])).code, 127);
  });

  test('the API names the signal and the timeout', async () => {
    const { exit_code, signal, timed_out } = await ended(await create('sleep 1000', { timeout_seconds: 1 }));
    assert.deepEqual([exit_code, signal, timed_out], [null, 'SIGKILL', true]);
    const waits = await create('sleep 1000');
    await berth.client.expect(204, 'POST', `${guest.path}/execs/${waits.id}/signal`, { signal: 'SIGUSR1' });
    assert.equal((await ended(waits)).signal, 'SIGUSR1');
  });

  test('an exec on a terminal reads what is typed', async () => {
    const running = cli.onTerminal([
      'exec',
      '-it',
      'web',
      'sh',
      '-c',
      'tty; read word; echo "got-$word"; exit 3',
    ]);
    await prints(running, '/dev/pts/');
    running.child.stdin?.write('hello\r');
    assert.equal((await running.ended).code, 3);
    assert.match(running.out(), /got-hello/);
  });

  test('a reader gets 100 MiB whole', async () => {
    const bytes = 100 * 2 ** 20;
    const running = exec(`yes 0123456789abcde | head -c ${bytes}`, '--no-stdin');
    const ran = await running.ended;
    assert.deepEqual([ran.code, ran.out.length], [0, bytes], ran.err);
    const md5 = (text: string) => createHash('md5').update(text).digest('hex');
    assert.equal(md5(ran.out), md5('0123456789abcde\n'.repeat(bytes / 16)));
  });

  for (const role of ['agent', 'control-plane'] as const) {
    test(`the ${role} is killed in the middle of output: the reader gets all of it, and the exit`, async () => {
      const running = exec(COUNT(2000), '--no-stdin');
      await prints(running, '200\n');
      await berth.kill(role);
      const ran = await running.ended;
      assert.ok(ran.out === numbers(2000), `${ran.out.length} bytes: ${ran.err}`);
      assert.equal(ran.code, 5);
      await berth.recovered(role);
    });
  }

  test('its reader is killed: it runs on, and attach has its output from the start', async () => {
    const running = exec(COUNT(1000), '--no-stdin');
    await prints(running, '100\n');
    running.child.kill('SIGKILL');
    const [latest] = (
      await berth.client.expect<{ data: ExecBody[] }>(200, 'GET', `${guest.path}/execs?limit=1`)
    ).data;
    assert.ok(latest);
    const again = await cli.run(['exec', 'attach', 'web', latest.id]);
    assert.ok(again.out === numbers(1000), again.err);
    assert.equal(again.code, 5);
  });

  test('it runs on after a suspend, and its output is complete', async () => {
    const counting = await create(COUNT(1000));
    await until('it has begun', async () => (await show(counting)).output_bytes > 0);
    await guest.suspend();
    assert.equal((await show(counting)).state, 'running');
    await guest.start();
    assert.equal((await ended(counting)).exit_code, 5);
    assert.ok((await outputOf(counting)) === numbers(1000));
  });

  test('a restart and a stop lose what runs, and keep its output and what has ended', async () => {
    for (const end of ['restart', 'stop'] as const) {
      const waits = await create('echo kept; sleep 1000');
      const over = await create('exit 4');
      await until('its output is seen', async () => (await show(waits)).output_bytes === 5);
      await ended(over);
      await guest[end]();
      const { state, exit_code, signal } = await ended(waits);
      assert.deepEqual([state, exit_code, signal], ['lost', null, null]);
      assert.equal(await outputOf(waits), 'kept\n');
      assert.equal((await show(over)).exit_code, 4);
    }
  });
});
