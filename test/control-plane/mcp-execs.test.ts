/** The tools for commands, with a scripted agent in place of the host: bounds, waits, and what ends with its caller. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { test } from 'node:test';
import { FRAME, offsetBytes, streamFrame } from '../../src/protocol/exec-types.ts';
import { type ExecId, newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { McpClient } from '../support/mcp-client.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const { agent } = api;
const { id: instance_id, name: instance } = await instanceIn(api, owner, 'running');
const { key } = await makeKey(api.db, owner, 'instances:read vm:read vm:write');
const mcp = await McpClient.overHttp(api.origin, key);

async function started(): Promise<{ exec_id: ExecId; command: readonly string[] }> {
  const { id, call } = await agent.nextCall('exec_start');
  await agent.client.answerCall({ id, answer: { result: { refused: null } } });
  return { exec_id: call.exec_id, command: call.command };
}

async function reader(): Promise<{ line: Duplex; offset: number }> {
  const { id, call } = await agent.nextCall('exec_stream');
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  line.write(streamFrame(FRAME.attached, offsetBytes(call.offset)));
  return { line, offset: call.offset };
}

const output = (offset: number, bytes: string | Buffer, type: number = FRAME.stdout) =>
  streamFrame(type, offsetBytes(offset), Buffer.from(bytes));

function exitOf(exec_id: ExecId, exit_code: number, output_bytes = 0): Buffer {
  const ended_at = new Date().toISOString();
  const end = { state: 'exited', exit_code, signal: null, timed_out: false, ended_at };
  return streamFrame(FRAME.exit, Buffer.from(JSON.stringify({ instance_id, exec_id, output_bytes, end })));
}

/** In frames as an agent sends them. */
function send(line: Duplex, text: string): void {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += 16_384) line.write(output(at, bytes.subarray(at, at + 16_384)));
}

test('exec returns exit code and output; colours and other sequences for terminals are gone', async () => {
  const told = mcp.done('exec', { instance, command: 'make test', cwd: '/srv' });
  const { exec_id, command } = await started();
  assert.deepEqual(command, ['sh', '-c', 'make test']);
  const { line } = await reader();
  line.write(output(0, '10 %\r20 %\r\n\u001b[31mred\u001b[0m\n'));
  line.write(output(24, 'err\n', FRAME.stderr));
  line.write(exitOf(exec_id, 2, 28));
  assert.deepEqual(await told, { failed: false, text: 'Exit code 2.', of_guest: '10 %\n20 %\nred\nerr\n' });
});

test('the middle of a long output is left out, and exec_output shows it', async () => {
  const lines = Array.from({ length: 20_000 }, (_, at) => `line ${at} é\n`).join('');
  const told = mcp.done('exec', { instance, command: 'seq' });
  const { exec_id } = await started();
  const first = await reader();
  send(first.line, lines);
  first.line.write(exitOf(exec_id, 0, Buffer.byteLength(lines)));
  const { text, of_guest } = await told;
  const [, total, left_out, offset] =
    /^Exit code 0\. (\d+) bytes of output; (\d+) of them, at \[…\], are left out: exec_output of \S+ with offset (\d+) shows them\.$/.exec(
      text,
    ) ?? [];
  assert.equal(Number(total), Buffer.byteLength(lines));
  assert(Buffer.byteLength(of_guest) < 21_000, 'bounded');
  const [head = '', tail = ''] = of_guest.split('\n[…]\n');
  assert(lines.startsWith(head) && lines.endsWith(tail) && tail !== '');
  assert.equal(Buffer.byteLength(head), Number(offset));
  const rest = mcp.done('exec_output', { instance, exec_id, offset: Number(offset) });
  const second = await reader();
  assert.equal(second.offset, Number(offset));
  const bytes = Buffer.from(lines).subarray(second.offset, second.offset + 40_000);
  second.line.write(output(second.offset, bytes));
  const more = await rest;
  assert.match(more.text, new RegExp(`^Bytes ${offset} to \\d+\\. More from offset \\d+\\.$`));
  assert(Number(left_out) > 100_000);
  assert(bytes.toString('utf8').startsWith(more.of_guest));
  assert(Buffer.byteLength(more.of_guest) > 19_990);
  await once(second.line, 'close');
});

test('output that is no longer kept is an error that says where to read on', async () => {
  const exec_id = newId('exec');
  const row = { id: exec_id, instance_id, host_id: api.host_id, command: ['job'], tty: false, stdin: false };
  await api.db
    .insertInto('execs')
    .values({ ...row, state: 'running' })
    .execute();
  const told = mcp.fails('exec_output', { instance, exec_id, offset: 5 });
  const { id } = await agent.nextCall('exec_stream');
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  line.write(Buffer.concat([streamFrame(FRAME.attached, offsetBytes(100)), output(100, 'rest')]));
  const text = await told;
  line.destroy();
  assert.match(
    text,
    /^OUTPUT_LOST: 95 bytes of the output, from offset 5 on.*\nNext: exec_output with offset 100\.$/,
  );
});

test('a command that outlives the wait runs on; its stream ends, and a later call reads on', async () => {
  const told = mcp.done('exec', { instance, command: 'job', wait_seconds: 1 });
  const { exec_id } = await started();
  const { line } = await reader();
  line.write(output(0, 'begun\n'));
  const closed = once(line, 'close');
  const { text, of_guest } = await told;
  assert.equal(
    text,
    `Still running after 1 s, as ${exec_id}. exec_output with offset 6 waits for more; kill_exec ends it.`,
  );
  assert.equal(of_guest, 'begun\n');
  await closed;
  const later = mcp.done('exec_output', { instance, exec_id, offset: 6 });
  const again = await reader();
  again.line.write(output(6, 'done\n'));
  again.line.write(exitOf(exec_id, 0, 11));
  assert.deepEqual(await later, {
    failed: false,
    text: 'Bytes 6 to 11. Exit code 0.',
    of_guest: 'done\n',
  });
});

test('a caller that disconnects leaves no stream behind, and the command runs on', async () => {
  const gone = new AbortController();
  const call = { name: 'exec', arguments: { instance, command: 'sleep 1000', wait_seconds: 50 } };
  const asked = mcp.client.callTool(call, { signal: gone.signal });
  const { exec_id } = await started();
  const { line } = await reader();
  const closed = once(line, 'close');
  gone.abort();
  await assert.rejects(asked);
  await closed;
  const found = await api.as(owner).get<{ state: string }>(`/v1/instances/${instance_id}/execs/${exec_id}`);
  assert.equal(found.body.state, 'running');
});

test('kill_exec ends a command', async () => {
  const told = mcp.done('exec', { instance, command: 'job', wait_seconds: 1 });
  const { exec_id } = await started();
  await told;
  const killing = mcp.done('kill_exec', { instance, exec_id });
  const { id, call } = await agent.nextCall('exec_control');
  await agent.client.answerCall({ id, answer: { result: { outcome: 'done' } } });
  assert.deepEqual(call.action, { kind: 'signal', signal: 9 });
  assert.equal((await killing).text, `${exec_id} is ended.`);
});

test('a command on a stopped instance says how to start it', async () => {
  const { name } = await api.instance(owner);
  assert.match(
    await mcp.fails('exec', { instance: name, command: 'id' }),
    /^VM_NOT_RUNNING: .*\nNext: start_instance, then try again\.$/,
  );
});
