import assert from 'node:assert/strict';
import { Duplex } from 'node:stream';
import { test } from 'node:test';
import { CALLS_MAX, type HostCall } from '../../protocol/host-calls.ts';
import { type HostId, newId } from '../../shared/ids.ts';
import { HostCalls } from './host-calls.ts';
import { askerOf, newCallId, noOthers } from './peers.ts';

const HOST: HostId = newId('host');
const never = new AbortController().signal;
const vm = { instance_id: newId('inst'), vm_id: newId('vm') };
const exec = (stdin = ''): HostCall => ({ kind: 'exec', ...vm, command: ['cat'], stdin, timeout_ms: 1_000 });

test('long commands do not block a stream', async () => {
  const calls = new HostCalls();
  const asked = Array.from({ length: 256 }, () => calls.ask(HOST, exec(), 60_000, never));
  const ended = Promise.allSettled(asked);
  assert.equal((await calls.take(HOST, 1_000, never)).length, 256);
  await assert.rejects(calls.ask(HOST, exec(), 60_000, never), /too many calls/);
  const opened = calls.open(HOST, { kind: 'ssh', ...vm }, 60_000, never);
  const [ssh] = await calls.take(HOST, 1_000, never);
  assert.equal(ssh?.call.kind, 'ssh');
  assert(await calls.connect(HOST, ssh.id, () => new Duplex()));
  await opened;
  calls.close();
  await ended;
});

test('a guest that answers late does not block the others of its host', async () => {
  const calls = new HostCalls();
  const late = Array.from({ length: 256 }, () => calls.open(HOST, { kind: 'ssh', ...vm }, 60_000, never));
  const ended = Promise.allSettled(late);
  const other = { instance_id: newId('inst'), vm_id: newId('vm') };
  const opened = calls.open(HOST, { kind: 'ssh', ...other }, 60_000, never);
  const taken = await calls.take(HOST, 1_000, never);
  const ssh = taken.find(({ call }) => 'instance_id' in call && call.instance_id === other.instance_id);
  assert(await calls.connect(HOST, ssh?.id ?? '', () => new Duplex()));
  await opened;
  calls.close();
  await ended;
});

test('a poll has no more calls than an answer may have', async () => {
  const calls = new HostCalls();
  const ended = Promise.allSettled(
    Array.from({ length: 9 }, () => newId('inst')).flatMap((instance_id) =>
      Array.from({ length: 256 }, () =>
        calls.open(HOST, { kind: 'ssh', instance_id, vm_id: vm.vm_id }, 60_000, never),
      ),
    ),
  );
  for (const expected of [CALLS_MAX, 9 * 256 - CALLS_MAX]) {
    const { length } = await calls.take(HOST, 1_000, never);
    assert.equal(length, expected);
  }
  calls.close();
  await ended;
});

test('a poll takes no more than fits into an answer; the next polls take the rest, each call once', async () => {
  const calls = new HostCalls();
  const ended = Promise.allSettled(
    Array.from({ length: 20 }, () => calls.ask(HOST, exec('x'.repeat(1024 * 1024)), 60_000, never)),
  );
  const taken: string[][] = [];
  for (let left = 20; left > 0; ) {
    const found = await calls.take(HOST, 1_000, never);
    taken.push(found.map(({ id }) => id));
    left -= found.length;
  }
  assert.deepEqual(
    taken.map(({ length }) => length),
    [7, 7, 6],
  );
  assert.equal(new Set(taken.flat()).size, 20);
  calls.close();
  await ended;
});

test('the id of a call is a UUID that names its control plane', () => {
  const random = '01234567-89ab-4cde-8f01-23456789abcd';
  const id = newCallId('fedcba987654', random);
  assert.equal(id, 'fedcba98-7654-4cde-8f01-23456789abcd');
  assert.equal(askerOf(id), 'fedcba987654');
});

test('a call that another control plane has pulled fails after 5 s, unless the host got it', async (t) => {
  const calls = new HostCalls();
  t.mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  const [lost, passed_on] = [exec('lost'), exec('passed on')].map((call) =>
    calls.ask(HOST, call, 60_000, never),
  );
  const told = assert.rejects(lost ?? Promise.resolve(), {
    code: 'UNAVAILABLE',
    message: /took the call and then stopped\. It may have been carried out/,
  });
  const pulled = calls.pick(HOST, 'pulled');
  assert.deepEqual([pulled.length, calls.pick(HOST, 'pulled').length], [2, 0], 'each once');
  const [, second] = pulled;
  calls.confirm(HOST, [second?.id ?? '']);
  t.mock.timers.tick(5_000);
  await told;
  const result = { exit_code: 0, stdout: '', stderr: '', truncated: false };
  assert.equal(await calls.answer(HOST, second?.id ?? '', { result }), true);
  assert.deepEqual(await passed_on, result);
});

test('the others are told of a call until one of them has it, and not when the host polls here', async (t) => {
  const told: string[] = [];
  const calls = new HostCalls({ ...noOthers(), tell: (host_id) => void told.push(host_id) });
  const here = calls.take(HOST, 60_000, never);
  const first = calls.ask(HOST, exec(), 60_000, never);
  const [taken] = await here;
  await new Promise(setImmediate);
  assert.deepEqual(told, []);
  t.mock.timers.enable({ apis: ['setInterval'] });
  const second = calls.ask(HOST, exec(), 60_000, never);
  await new Promise(setImmediate);
  assert.equal(told.length, 1);
  t.mock.timers.tick(1_000);
  assert.equal(told.length, 2);
  assert.equal(calls.pick(HOST, 'pulled').length, 1);
  t.mock.timers.tick(3_000);
  assert.equal(told.length, 2);
  assert(taken);
  const ended = Promise.allSettled([first, second]);
  calls.close();
  await ended;
});
