/** `berth exec` and its commands, with a scripted agent in place of the host. */
import assert from 'node:assert/strict';
import type { Duplex } from 'node:stream';
import { test } from 'node:test';
import { FRAME, offsetBytes, StreamFrames, streamFrame } from '../../src/protocol/exec-types.ts';
import type { ExecId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const owner = await api.person();
const { agent } = api;
const { id: instance_id } = await instanceIn(api, owner, 'running');
const { name } = (await api.as(owner).get<{ name: string }>(`/v1/instances/${instance_id}`)).body;
const { key } = await makeKey(api.db, owner, '*');
const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });

async function started(): Promise<ExecId> {
  const { id, call } = await agent.nextCall('exec_start');
  await agent.client.answerCall({ id, answer: { result: { refused: null } } });
  return call.exec_id;
}

async function reader(): Promise<{ line: Duplex; offset: number; got: { type: number; payload: Buffer }[] }> {
  const { id, call } = await agent.nextCall('exec_stream');
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  const got: { type: number; payload: Buffer }[] = [];
  const frames = new StreamFrames();
  line.on('data', (chunk: Buffer) => got.push(...frames.push(chunk)));
  line.write(streamFrame(FRAME.attached, offsetBytes(call.offset)));
  return { line, offset: call.offset, got };
}

const output = (type: number, offset: number, text: string) =>
  streamFrame(type, offsetBytes(offset), Buffer.from(text));

function exitOf(exec_id: ExecId, exit_code: number | null, signal: number | null = null): Buffer {
  const ended_at = new Date().toISOString();
  const end = { state: 'exited', exit_code, signal, timed_out: false, ended_at };
  return streamFrame(FRAME.exit, Buffer.from(JSON.stringify({ instance_id, exec_id, output_bytes: 0, end })));
}

test('streams output and input, and exits with the exit code of the command', async () => {
  const running = cli.start(['exec', name, 'sh', '-c', 'cat'], 'in\0put');
  const exec_id = await started();
  const { line, got } = await reader();
  await until('the input', async () => got.some(({ type }) => type === FRAME.eof));
  const sent = Buffer.concat(got.filter(({ type }) => type === FRAME.input).map(({ payload }) => payload));
  assert.equal(sent.toString(), 'in\0put');
  line.write(
    Buffer.concat([output(FRAME.stdout, 0, 'out'), output(FRAME.stderr, 3, 'err'), exitOf(exec_id, 7)]),
  );
  assert.deepEqual(await running.ended, { code: 7, out: 'out', err: 'err' });
});

test('attaches again where it was cut off, and exits with 128 and the number of a signal', async () => {
  const running = cli.start(['exec', '-n', name, 'job'], null);
  const exec_id = await started();
  const first = await reader();
  first.line.end(output(FRAME.stdout, 0, 'half '));
  const second = await reader();
  assert.equal(second.offset, 5);
  second.line.write(Buffer.concat([output(FRAME.stdout, 5, 'whole'), exitOf(exec_id, null, 15)]));
  assert.deepEqual(await running.ended, { code: 143, out: 'half whole', err: '' });
});

test('an output that nobody reads for a while arrives whole, without a warning, also after a reconnect', async () => {
  const piece = 'x'.repeat(4_096);
  const pieces = (from: number, count: number) =>
    Array.from({ length: count }, (_, at) => output(FRAME.stdout, (from + at) * piece.length, piece));
  const running = cli.start(['exec', '-n', name, 'job'], null);
  running.child.stdout?.pause();
  const exec_id = await started();
  const first = await reader();
  first.line.end(Buffer.concat(pieces(0, 300)));
  await until('the program waits for its reader', () => (running.child.stdout?.readableLength ?? 0) > 0);
  running.child.stdout?.resume();
  const second = await reader();
  const reached = second.offset / piece.length;
  second.line.write(Buffer.concat([...pieces(reached, 600 - reached), exitOf(exec_id, 0)]));
  const { code, out, err } = await running.ended;
  assert.deepEqual([code, out.length, err], [0, 600 * piece.length, '']);
});

test('a lost command is said to have ended with its boot, or with what runs commands in the guest', async () => {
  for (const [lost_with, said] of [
    ['boot', `${name} restarted or stopped before the command ended`],
    [
      'supervisor',
      `something in ${name} ended the process that runs commands there.*; ${name} did not restart`,
    ],
  ]) {
    const running = cli.start(['exec', '-n', name, 'job'], null);
    const exec_id = await started();
    const { line } = await reader();
    const end = { exit_code: null, signal: null, timed_out: false, ended_at: new Date().toISOString() };
    const report = { instance_id, exec_id, output_bytes: 0, end: { ...end, state: 'lost', lost_with } };
    line.write(streamFrame(FRAME.exit, Buffer.from(JSON.stringify(report))));
    const { code, err } = await running.ended;
    assert.match(err, new RegExp(`^berth: ${said}\n`));
    assert.equal(code, 5);
  }
});

test('-d returns at once; attach, ls and kill name it', async () => {
  const running = cli.start(['-q', 'exec', '-d', name, 'job', 'two words'], null);
  const exec_id = await started();
  assert.deepEqual(await running.ended, { code: 0, out: `${exec_id}\n`, err: '' });
  const listed = await cli.run(['exec', 'ls', name]);
  assert.match(listed.out, new RegExp(`${exec_id} +running +\\d+ B .*job 'two words'`));
  const killing = cli.start(['exec', 'kill', name, exec_id], null);
  const { id, call } = await agent.nextCall('exec_control');
  await agent.client.answerCall({ id, answer: { result: { outcome: 'done' } } });
  assert.deepEqual([call.action, (await killing.ended).code], [{ kind: 'signal', signal: 9 }, 0]);
  const attached = cli.start(['exec', 'attach', name, exec_id, '--offset', '2'], null);
  const { line, offset } = await reader();
  assert.equal(offset, 2);
  line.write(exitOf(exec_id, 3));
  assert.equal((await attached.ended).code, 3);
});

test('output that is lost in the middle is an error with an exit code of its own, and nothing after it is printed', async () => {
  const running = cli.start(['exec', '-n', name, 'job'], null);
  const exec_id = await started();
  const first = await reader();
  first.line.end(output(FRAME.stdout, 0, 'half '));
  const { id } = await agent.nextCall('exec_stream');
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  line.write(
    Buffer.concat([streamFrame(FRAME.attached, offsetBytes(100)), output(FRAME.stdout, 100, 'rest')]),
  );
  const { code, out, err } = await running.ended;
  line.destroy();
  assert.deepEqual([code, out], [123, 'half ']);
  assert.match(err, /95 bytes of the output, from byte 5 on, are no longer kept/);
  assert.match(err, new RegExp(`berth exec attach ${name} ${exec_id} --offset 100`));
});

test('attach begins with what is kept, and says what is missing before it', async () => {
  const running = cli.start(['-q', 'exec', '-d', name, 'job'], null);
  const exec_id = await started();
  await running.ended;
  const attached = cli.start(['exec', 'attach', name, exec_id], null);
  const { id } = await agent.nextCall('exec_stream');
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  line.write(streamFrame(FRAME.attached, offsetBytes(100)));
  const again = await reader();
  line.destroy();
  assert.equal(again.offset, 100);
  again.line.write(Buffer.concat([output(FRAME.stdout, 100, 'rest'), exitOf(exec_id, 3)]));
  const { code, out, err } = await attached.ended;
  assert.deepEqual([code, out], [3, 'rest']);
  assert.match(err, /berth: 100 bytes of the output, from byte 0 on, are no longer kept/);
});
