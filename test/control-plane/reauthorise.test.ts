/** A request whose body arrives late is checked against the caller's permissions at that time. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type ClientRequest, type IncomingMessage, request } from 'node:http';
import { test } from 'node:test';
import { apiForFile, newName } from '../support/api.ts';
import { makeKey, makeSudo, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile({ context: { slow_ms: 0 } });
const BODY = JSON.stringify({ name: newName() });

function begin(token: string, method: string, path: string, body = BODY, headers = {}): ClientRequest {
  const call = request(`${api.origin}${path}`, {
    method,
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
      ...headers,
    },
  });
  call.flushHeaders();
  return call;
}

/** The status, after the body has been sent. */
async function finish(call: ClientRequest, body = BODY): Promise<number | undefined> {
  const answered = once(call, 'response') as Promise<[IncomingMessage]>;
  call.end(body);
  const [answer] = await answered;
  answer.resume();
  return answer.statusCode;
}

/** Resolves once the head has been authenticated: the session is then noted as used. */
async function letIn({ session_id }: Person, start: () => ClientRequest): Promise<ClientRequest> {
  const old = new Date(Date.now() - 600_000);
  await api.db.updateTable('sessions').set({ last_seen_at: old }).where('id', '=', session_id).execute();
  const call = start();
  await until('the caller is known', async () => {
    const row = await api.db
      .selectFrom('sessions')
      .select('last_seen_at')
      .where('id', '=', session_id)
      .executeTakeFirstOrThrow();
    return row.last_seen_at > old;
  });
  return call;
}

const leave = ({ user_id, org_id }: Person) =>
  api.db.deleteFrom('memberships').where('user_id', '=', user_id).where('org_id', '=', org_id).execute();

test('201: a request with a late body is served, with a session and with a key', async () => {
  const who = await api.person();
  assert.equal(await finish(begin(who.session, 'POST', '/v1/instances')), 201);
  const { key } = await makeKey(api.db, who, '*');
  const body = JSON.stringify({ name: newName() });
  assert.equal(await finish(begin(key, 'POST', '/v1/instances', body), body), 201);
});

test('200: in the organisation of the path, regardless of that of the session', async () => {
  const who = await api.person();
  const made = await api.as(who).post<{ id: string }>('/v1/orgs', { name: 'second' });
  assert.equal((await api.as(who).patch(`/v1/orgs/${made.body.id}`, { name: 'other' })).status, 200);
});

test('401: the key was revoked meanwhile', async () => {
  const { id, key } = await makeKey(api.db, await api.person(), '*');
  const call = begin(key, 'POST', '/v1/instances');
  const used = () =>
    api.db.selectFrom('api_keys').select('last_used_at').where('id', '=', id).executeTakeFirstOrThrow();
  await until('the key is known', async () => (await used()).last_used_at);
  await api.db.deleteFrom('api_keys').where('id', '=', id).execute();
  assert.equal(await finish(call), 401);
});

test('403: the user was removed from the organisation meanwhile, and nothing is created in another', async () => {
  const owner = await api.person();
  const who = await api.person({ org_id: owner.org_id, role: 'admin' });
  const call = await letIn(who, () => begin(who.session, 'POST', '/v1/instances'));
  await api.as(who).post('/v1/orgs', { name: 'own' });
  await leave(who);
  assert.equal(await finish(call), 403);
  const rows = await api.db
    .selectFrom('instances')
    .select('id')
    .where('created_by', '=', who.user_id)
    .execute();
  assert.deepEqual(rows, []);
});

test('404: the user was removed meanwhile from the organisation of the path', async () => {
  const owner = await api.person();
  const who = await api.person({ org_id: owner.org_id, role: 'admin' });
  await api.as(who).post('/v1/orgs', { name: 'own' });
  const call = await letIn(who, () => begin(who.session, 'PATCH', `/v1/orgs/${owner.org_id}`));
  await leave(who);
  assert.equal(await finish(call), 404);
});

test('403: the sudo grant ended meanwhile', async () => {
  const who = await api.person();
  const sudo = await makeSudo(api.db, who);
  const path = `/v1/orgs/${who.org_id}/billing-email`;
  const body = JSON.stringify({ email: 'bills@example.org' });
  assert.equal(await finish(begin(who.session, 'PUT', path, body, sudo), body), 200);
  const call = await letIn(who, () => begin(who.session, 'PUT', path, body, sudo));
  await api.db.deleteFrom('sudo_grants').where('user_id', '=', who.user_id).execute();
  assert.equal(await finish(call, body), 403);
});
