/** The API of commands in the guest. test/guest has the guest's side. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { ExecResult } from '../../src/protocol/host-calls.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { instanceIn, isStillUsed } from '../support/states.ts';

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const owner = await api.person();
const client = api.as(owner);
const { agent } = api;
const running = await instanceIn(api, owner, 'running');
const exec = `/v1/instances/${running.id}/vm/exec`;
const RESULT: ExecResult = { exit_code: 3, stdout: 'out ä', stderr: 'err', truncated: false };

async function answered(answer: Parameters<typeof agent.client.answerCall>[0]['answer'], body: object) {
  const asked = client.post<ExecResult>(exec, body);
  const { id, call } = await agent.nextCall('exec');
  assert.deepEqual(await agent.client.answerCall({ id, answer }), { outcome: 'accepted' });
  return { call, answer: await asked, id };
}

describe('200', () => {
  test("a command reaches the VM's host unchanged, and its result the caller", async () => {
    const command = ['printf', '%s', '', '$HOME "x"\n'];
    const { call, answer } = await answered(
      { result: RESULT },
      { command, stdin: 'in\0', timeout_seconds: 600 },
    );
    assert.deepEqual([answer.status, answer.body], [200, RESULT]);
    const { vm_id } = await agent.known(running.id);
    assert.deepEqual(call, {
      kind: 'exec',
      instance_id: running.id,
      vm_id,
      command,
      stdin: 'in\0',
      timeout_ms: 600_000,
    });
  });
  test('without stdin the input is empty, without a timeout it is a minute', async () => {
    const { call, answer } = await answered(
      { result: { ...RESULT, exit_code: null } },
      { command: ['true'] },
    );
    assert.deepEqual([call.stdin, call.timeout_ms, answer.body.exit_code], ['', 60_000, null]);
  });
  test('a mebibyte in each direction', async () => {
    const much = '\n'.repeat(1024 * 1024);
    const { call, answer } = await answered(
      { result: { ...RESULT, stdout: much, stderr: much } },
      { command: ['cat'], stdin: much },
    );
    assert.deepEqual([call.stdin.length, answer.body.stdout.length], [much.length, much.length]);
    assert.equal(answer.body.stderr, much);
  });
  test('the audit log keeps the program and none of its arguments', async () => {
    await answered({ result: RESULT }, { command: ['/bin/secretive', 'hunter2'], stdin: 'hunter3' });
    const entries = await api.db
      .selectFrom('audit_log')
      .select(['action', 'target', 'data'])
      .where('action', '=', 'vm.exec')
      .execute();
    const last = entries.find(({ data }) => data['program'] === '/bin/secretive');
    assert.equal(last?.target, running.id);
    assert.doesNotMatch(JSON.stringify(entries), /hunter/);
  });
  test('the audit log keeps a program whose name is cut within a character, too', async () => {
    for (const program of [`${'x'.repeat(199)}\u{1f600}`, '\ud83d']) {
      const { answer } = await answered({ result: RESULT }, { command: [program] });
      assert.equal(answer.status, 200, answer.text);
    }
  });
});

describe('400', () => {
  const bodies: object[] = [
    {},
    { command: [] },
    { command: 'true' },
    { command: [''] },
    { command: ['a\0b'] },
    { command: [1] },
    { command: Array(257).fill('x') },
    { command: ['x'.repeat(131_072)] },
    { command: ['ä'.repeat(65_536)] },
    { command: ['true'], stdin: 'ä'.repeat(600_000) },
    { command: ['true'], timeout_seconds: 0 },
    { command: ['true'], timeout_seconds: 601 },
    { command: ['true'], shell: true },
  ];
  for (const body of bodies) {
    test(JSON.stringify(body).slice(0, 50), async () => {
      assertError(await client.post(exec, body), 'INVALID_REQUEST');
    });
  }
});

describe('403', () => {
  test('a credential that may only read', async () => {
    const billing = await api.person({ org_id: owner.org_id, role: 'billing' });
    assertError(await api.as(billing).post(exec, { command: ['true'] }), 'FORBIDDEN');
  });
});

describe('404', () => {
  test("another organisation's VM, like an unknown one", async () => {
    const stranger = await api.person();
    const theirs = await api.as(stranger).post(exec, { command: ['true'] });
    assertError(theirs, 'NOT_FOUND');
    const none = await client.post(`/v1/instances/${newId('inst')}/vm/exec`, { command: ['true'] });
    assert.deepEqual(withoutRequestId(none), withoutRequestId(theirs));
  });
});

describe('409', () => {
  test('a VM that ended just before', async () => {
    const error = { code: 'not_running', message: 'The VM rebooted.' } as const;
    const { answer } = await answered({ error }, { command: ['true'] });
    assertError(answer, 'VM_NOT_RUNNING', /rebooted/);
  });
});

describe('413', () => {
  test('a body larger than the maximum stdin', async () => {
    const body = { command: ['cat'], stdin: 'x'.repeat(5 * 1024 * 1024) };
    assertError(await client.post(exec, body), 'PAYLOAD_TOO_LARGE');
  });
});

describe('429', () => {
  test('too many concurrent commands in one guest', async () => {
    const error = { code: 'busy', message: '8 commands run in this VM already.' } as const;
    const { answer } = await answered({ error }, { command: ['true'] });
    assertError(answer, 'RATE_LIMITED', /8 commands/);
    assert.equal(answer.headers['retry-after'], '1');
  });
});

describe('503', () => {
  test('the guest agent does not answer', async () => {
    const error = { code: 'guest_silent', message: "The guest's agent does not answer." } as const;
    assertError((await answered({ error }, { command: ['true'] })).answer, 'UNAVAILABLE', /agent/);
  });
  test('no agent fetches it', async () => {
    assertError(await client.post(exec, { command: ['true'] }), 'UNAVAILABLE', /host does not answer/);
  });
  test('a restarted agent returns the results of its predecessor', async () => {
    const asked = client.post(exec, { command: ['true'] });
    await agent.nextCall('exec');
    const gone = new AbortController();
    const polled = agent.client.calls({ fresh: true }, gone.signal).catch(() => undefined);
    assertError(await asked, 'UNAVAILABLE', /restarted/);
    gone.abort();
    await polled;
  });
});

test('a command is handed over once, and a result without a waiting caller is dropped', async () => {
  const gone = new AbortController();
  const asked = client.post(exec, { command: ['true'] }, { signal: gone.signal }).catch(() => 'gone');
  const { id } = await agent.nextCall('exec');
  gone.abort();
  assert.equal(await asked, 'gone');
  const other = client.post<ExecResult>(exec, { command: ['other'] });
  const next = await agent.nextCall('exec');
  assert.deepEqual(next.call.command, ['other']);
  await agent.client.answerCall({ id: next.id, answer: { result: RESULT } });
  assert.equal((await other).status, 200);
  assert.deepEqual(await agent.client.answerCall({ id, answer: { result: RESULT } }), { outcome: 'fenced' });
});

test('a running command counts as use of the VM', async () => {
  const asked = client.post(exec, { command: ['sleep', '600'], timeout_seconds: 600 });
  const { id } = await agent.nextCall('exec');
  await isStillUsed(api, running.id);
  await agent.client.answerCall({ id, answer: { result: RESULT } });
  await asked;
});

test("another host's agent neither sees nor answers it", async () => {
  const { HostCalls } = await import('../../src/control-plane/fleet/host-calls.ts');
  const calls = new HostCalls();
  const mine = newId('host');
  const never = new AbortController().signal;
  const call = { kind: 'console_log', instance_id: running.id, max_bytes: 1 } as const;
  const asked = calls.ask<{ text: string }>(mine, call, 5_000, never);
  const other = newId('host');
  assert.deepEqual(await calls.take(other, 1, never), []);
  const [pending] = await calls.take(mine, 1_000, never);
  assert.equal(await calls.answer(other, pending?.id ?? '', { result: { text: 'theirs' } }), false);
  assert.equal(await calls.answer(mine, pending?.id ?? '', { result: { text: 'ours' } }), true);
  assert.deepEqual(await asked, { text: 'ours' });
  calls.close();
});
