/** What those get who do not belong to an organisation: members who were removed, revoked keys, others' accounts. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request } from 'node:http';
import { connect } from 'node:net';
import { test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { lockInstance } from '../../src/control-plane/instances/store.ts';
import { FRAME, offsetBytes, streamFrame } from '../../src/protocol/exec-types.ts';
import { newId } from '../../src/shared/ids.ts';
import { QUOTA_DEFAULTS } from '../../src/shared/quotas.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { nextFileCall } from '../support/file-host.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, type Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const quotas = { ...QUOTA_DEFAULTS, streams: 3 };
const api = await apiForFile({ context: { heartbeat_ms: 50, has_smtp: true, signups: 'open', quotas } });
const { agent } = api;
const owner = await api.person();
const running = await instanceIn(api, owner, 'running');
const path = `/v1/instances/${running.id}`;

async function startedExec(): Promise<string> {
  const asked = api.as(owner).post<{ id: string }>(`${path}/execs`, { command: ['x'] });
  const { id } = await agent.nextCall('exec_start');
  await agent.client.answerCall({ id, answer: { result: { refused: null } } });
  return `${path}/execs/${(await asked).body.id}/output`;
}

/** The host's end of a reader of the output, which has `text`. */
async function hostsEnd(text: string) {
  const { id } = await agent.nextCall('exec_stream');
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  line.write(streamFrame(FRAME.attached, offsetBytes(0)));
  line.write(streamFrame(FRAME.stdout, offsetBytes(0), Buffer.from(text)));
  return line;
}

const headersOf = (token: string) => ({ authorization: `Bearer ${token}` });

async function removed(who: Person): Promise<void> {
  const { status } = await api.as(owner).delete(`/v1/orgs/${owner.org_id}/members/${who.user_id}`);
  assert.equal(status, 204);
  assert.equal((await api.as(who).get(path)).status, 404);
}

test('a removed member follows the output of an exec no longer', async () => {
  const who = await api.person({ org_id: owner.org_id, role: 'member' });
  const output = await startedExec();
  const asked = fetch(`${api.origin}${output}?follow=true`, { headers: headersOf(who.session) });
  const line = await hostsEnd('before');
  const answer = await asked;
  await removed(who);
  const text = await answer.text();
  assert.match(text, /event: end\ndata: .*FORBIDDEN/);
  line.destroy();
});

test('a file that a member began to write before the removal is not written', async () => {
  const who = await api.person({ org_id: owner.org_id, role: 'member' });
  const call = request(`${api.origin}${path}/files?path=%2Fetc%2Fcron.d%2Fx`, {
    method: 'PUT',
    headers: { ...headersOf(who.session), 'content-type': 'application/octet-stream' },
  });
  const over = once(call, 'error').then(() => 'broken');
  const answered = once(call, 'response').then(([response]) => String(response.statusCode));
  answered.catch(() => undefined);
  call.write('begin');
  const host = await nextFileCall(agent);
  host.say('opened');
  await removed(who);
  assert.notEqual(await Promise.race([over, answered]), '201');
  call.destroy();
});

test('readers of kept output count as streams, and end with their key', async () => {
  const output = await startedExec();
  const { id, key } = await makeKey(api.db, owner, 'vm:read');
  const open = async () => {
    const asked = fetch(`${api.origin}${output}`, { headers: headersOf(key) });
    const line = await hostsEnd('kept');
    return { line, answer: await asked };
  };
  const readers = [await open(), await open(), await open()];
  const refused = await fetch(`${api.origin}${output}`, { headers: headersOf(key) });
  assert.equal(refused.status, 429, await refused.text());
  await api.db.deleteFrom('api_keys').where('id', '=', id).execute();
  for (const { line, answer } of readers) {
    await assert.rejects(answer.text());
    await until('the host is left', () => line.destroyed || line.readableEnded);
    line.destroy();
  }
});

test('an account whose address nobody confirmed is not told of an invitation to it', async () => {
  const email = `${newId('usr')}@victim.example`;
  const password = 'correct horse battery';
  const made = await api.client.post<{ session_token: string }>('/v1/auth/register', { email, password });
  assert.equal(made.status, 201, made.text);
  const invite = () =>
    api.as(owner).post<{ id: string }>(`/v1/orgs/${owner.org_id}/invitations`, { email, role: 'admin' });
  const told = async () => {
    await raiseNotificationsOfEvents(api.db);
    const { body } = await api
      .as(made.body.session_token)
      .get<{ data: { kind: string }[] }>('/v1/notifications');
    return body.data.map(({ kind }) => kind).filter((kind) => kind === 'org.invited');
  };
  const { body } = await invite();
  assert.deepEqual(await told(), []);
  await api.as(owner).delete(`/v1/orgs/${owner.org_id}/invitations/${body.id}`);
  await api.db.updateTable('users').set({ email_confirmed: true }).where('email', '=', email).execute();
  assert.equal((await invite()).status, 201);
  assert.deepEqual(await told(), ['org.invited']);
});

test('a change of another’s instance does not wait for it, nor hold it up', async () => {
  const stranger = await api.person();
  await transaction(api.db, async (tx) => {
    await lockInstance(tx, running.id);
    assertError(await api.as(stranger).patch(path, { name: 'mine' }), 'NOT_FOUND');
  });
});

test('without a credential a body has at most 64 KiB', async () => {
  const answer = await api.client.post('/v1/auth/login', {
    email: 'a@example.org',
    password: 'x'.repeat(64 * 1024),
  });
  assertError(answer, 'PAYLOAD_TOO_LARGE');
});

test('an organisation has at most 64 MiB of bodies under way; small ones and those of others go on', async () => {
  const head = [
    `POST ${path}/execs HTTP/1.1`,
    'Host: localhost',
    `Authorization: Bearer ${owner.session}`,
    'Content-Type: application/json',
    `Content-Length: ${8 * 1024 * 1024}`,
  ].join('\r\n');
  const sockets = Array.from({ length: 8 }, () => {
    const socket = connect(Number(new URL(api.origin).port), '127.0.0.1');
    socket.on('error', () => undefined);
    socket.write(`${head}\r\n\r\n{`);
    return socket;
  });
  const large = async (who: Person) =>
    (await api.as(who).post(`${path}/execs`, { unknown: 'x'.repeat(100 * 1024) })).status;
  await until('there is no room', async () => (await large(owner)) === 503);
  assert.equal((await api.as(owner).patch(path, { labels: { a: 'b' } })).status, 200);
  assert.notEqual(await large(await api.person()), 503);
  for (const socket of sockets) socket.destroy();
  await until('there is room again', async () => (await large(owner)) !== 503);
});
