/** Rate limits: by principal on everything, by address where a password or a token is taken. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { Agent } from 'undici';
import { WebSocket } from 'ws';
import { DEFAULT_RATE_LIMITS } from '../../src/config/settings.ts';
import { createApp } from '../../src/control-plane/app.ts';
import { ChangeCounts } from '../../src/control-plane/http/rate-limits.ts';
import { newId } from '../../src/shared/ids.ts';
import { type AccessApi, accessApiForFile } from '../support/access-api.ts';
import { startApi } from '../support/api.ts';
import { type Answer, Client } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import type { Person } from '../support/people.ts';

const { principal: PRINCIPAL_LIMIT, address: ADDRESS_LIMIT } = DEFAULT_RATE_LIMITS;
const api = await accessApiForFile({ rate_limits: DEFAULT_RATE_LIMITS, trusted_proxies: ['127.0.0.1'] });
const unlimited = await accessApiForFile();
const strict = await accessApiForFile({ rate_limits: { ...DEFAULT_RATE_LIMITS, principal: 2, address: 1 } });

/** From addresses of documentation (RFC 5737, RFC 3849), behind the proxy that is this test. */
const from = (ip: string) => ({ headers: { 'x-forwarded-for': ip } });
const nobody = { email: 'nobody@example.org', password: 'no such password' };

function login(at: AccessApi, ip: string, email = nobody.email): Promise<Answer<unknown>> {
  return at.client.post('/v1/auth/login', { ...nobody, email }, from(ip));
}
function left(answer: Answer<unknown>): number {
  return Number(/;r=(\d+);/.exec(String(answer.headers['ratelimit']))?.[1]);
}
/** Also what is refused for its form counts. */
async function useUp(who: Person): Promise<void> {
  for (let sent = 0; sent < PRINCIPAL_LIMIT; sent += 100) {
    const calls = Array.from({ length: 100 }, () => api.as(who).get('/v1/api-keys?x=1'));
    for (const answer of await Promise.all(calls)) assert.equal(answer.status, 400, answer.text);
  }
}

test('the limits are 1,200 requests a minute for a principal and 60 for an address', () => {
  assert.deepEqual([PRINCIPAL_LIMIT, ADDRESS_LIMIT], [1_200, 60]);
});

test('configured limits apply, and are reported', async () => {
  const who = await strict.member();
  const answers = [];
  for (let sent = 0; sent < 3; sent += 1) answers.push(await strict.as(who).get('/v1/me'));
  assert.deepEqual(
    answers.map(({ status, headers }) => [status, headers['ratelimit-policy']]),
    [200, 200, 429].map((status) => [status, '"principal";q=2;w=60']),
  );
  const logins = [
    await strict.client.post('/v1/auth/login', nobody),
    await strict.client.post('/v1/auth/login', nobody),
  ];
  assert.deepEqual(
    logins.map(({ status }) => status),
    [401, 429],
  );
});

test('every response to a principal has the policy and the remaining quota', async () => {
  const who = await api.member();
  const first = await api.as(who).get('/v1/me');
  assert.equal(first.headers['ratelimit-policy'], '"principal";q=1200;w=60');
  assert.match(String(first.headers['ratelimit']), /^"principal";r=1199;t=([1-9]|[1-5]\d|60)$/);
  assert.equal(left(await api.as(who).get('/v1/me')), 1_198);
});

test('the 1,201st request in a minute is 429 with Retry-After, and another principal is served', async () => {
  const who = await api.member();
  await useUp(who);
  const refused = await api.as(who).get('/v1/me');
  assertError(refused, 'RATE_LIMITED');
  assert.match(String(refused.headers['retry-after']), /^([1-9]|[1-5]\d|60)$/);
  assert.equal(left(refused), 0);
  const other = await api.member({ org_id: who.org_id, role: 'member' });
  assert.equal((await api.as(other).get('/v1/api-keys')).status, 200, 'a colleague is another principal');
});

test('all credentials of a user share one limit, in every organisation; a service account has its own', async () => {
  const who = await api.member();
  const { org_id } = await api.member();
  await api.db.insertInto('memberships').values({ org_id, user_id: who.user_id, role: 'admin' }).execute();
  const keys = [];
  for (const each of [who.org_id, who.org_id, org_id]) {
    keys.push((await api.key({ org_id: each, user_id: who.user_id }, '*')).key);
  }
  const service_account_id = await api.serviceAccount(who.org_id, '*');
  const robots = [];
  for (let n = 0; n < 2; n++) {
    robots.push((await api.key({ org_id: who.org_id, service_account_id }, '*')).key);
  }
  const counted = async (credentials: readonly (Person | string)[]) => {
    const answers = [];
    for (const each of credentials) answers.push(left(await api.as(each).get('/v1/instances')));
    return answers;
  };
  assert.deepEqual(await counted([who, ...keys]), [1_199, 1_198, 1_197, 1_196]);
  assert.deepEqual(await counted(robots), [1_199, 1_198]);
});

test('60 logins a minute from an address; the 61st is 429 with Retry-After; another address is served', async () => {
  for (let sent = 0; sent < ADDRESS_LIMIT; sent += 1) {
    const answer = await login(api, '192.0.2.1', `nobody-${sent}@example.org`);
    assertError(answer, 'UNAUTHENTICATED');
    assert.equal(answer.headers['ratelimit-policy'], '"address";q=60;w=60');
    assert.equal(left(answer), ADDRESS_LIMIT - 1 - sent);
  }
  const refused = await login(api, '192.0.2.1', 'somebody-else@example.org');
  assertError(refused, 'RATE_LIMITED');
  assert.match(String(refused.headers['retry-after']), /^([1-9]|[1-5]\d|60)$/);
  assertError(await login(api, '192.0.2.2', 'somebody-else@example.org'), 'UNAUTHENTICATED');
});

test('with two control planes, each grants half of a limit, counted in its memory', async (t) => {
  const context = {
    rate_limits: { ...DEFAULT_RATE_LIMITS, principal: 4, address: 3 },
    control_planes: () => 2,
  };
  const first = await startApi({ context });
  t.after(() => first.close());
  const other = await createApp(first.context);
  const connections = new Agent();
  first.beforeClose(async () => {
    await connections.destroy();
    await other.close();
  });
  const second = new Client(await other.listen({ host: '127.0.0.1', port: 0 }), connections);
  const logins = [];
  for (const client of [first.client, first.client, first.client, second])
    logins.push((await client.post('/v1/auth/login', nobody)).status);
  assert.deepEqual(logins, [401, 401, 429, 401]);
  const { session } = await first.person();
  const reads = [];
  for (const client of [first.client, first.client, first.client, second, second, second])
    reads.push((await client.as(session).get('/v1/me')).status);
  assert.deepEqual(reads, [200, 200, 429, 200, 200, 429]);
});

test('the routes that take a password or a token share the limit of an address', async () => {
  const who = await api.member();
  const ip = '192.0.2.3';
  const calls: [string, unknown, string | undefined][] = [
    ['/v1/auth/register', { email: 'a@example.org', password: 'a long passphrase' }, undefined],
    ['/v1/auth/login', { ...nobody, email: 'shared@example.org' }, undefined],
    ['/v1/auth/refresh', {}, undefined],
    ['/v1/auth/password-reset', { email: 'b@example.org' }, undefined],
    ['/v1/auth/password-reset/confirm', { token: 'x', new_password: 'a long passphrase' }, undefined],
    ['/v1/auth/passkey/options', {}, undefined],
    ['/v1/auth/sudo', { password: 'wrong' }, who.session],
    ['/v1/auth/password', { current_password: 'wrong', new_password: 'a long passphrase' }, who.session],
  ];
  for (const [index, [path, body, session]] of calls.entries()) {
    const client = session === undefined ? api.client : api.as(session);
    const answer = await client.post(path, body, from(ip));
    assert.equal(left(answer), ADDRESS_LIMIT - 1 - index, `${path}: ${answer.text}`);
  }
});

test('a /64 of IPv6 addresses is one caller', async () => {
  const counted = [
    await login(api, '2001:db8:0:1::1', 'v6a@example.org'),
    await login(api, '2001:db8:0:1:ffff::2', 'v6b@example.org'),
    await login(api, '2001:db8:0:2::1', 'v6c@example.org'),
  ];
  assert.deepEqual(counted.map(left), [59, 58, 59]);
});

test('a locked account gets 423 before 429, and is not counted', async () => {
  const ip = '192.0.2.4';
  const email = 'locked@example.org';
  for (let tries = 0; tries < 5; tries += 1) await login(api, ip, email);
  // Without a password to verify: all of it is to be within the minute.
  for (let sent = 5; sent < ADDRESS_LIMIT; sent += 1) {
    assert.equal(left(await api.client.post('/v1/auth/refresh', {}, from(ip))), ADDRESS_LIMIT - 1 - sent);
  }
  assertError(await login(api, ip, 'one-more@example.org'), 'RATE_LIMITED');
  const locked = await login(api, ip, email);
  assertError(locked, 'ACCOUNT_LOCKED');
  assert.ok(Number(locked.headers['retry-after']) > 0);
});

test('without limits nothing is counted and no header is sent', async () => {
  for (let sent = 0; sent <= ADDRESS_LIMIT; sent += 1) {
    const answer = await login(unlimited, '192.0.2.1', `nobody-${sent}@example.org`);
    assertError(answer, 'UNAUTHENTICATED');
    assert.equal(answer.headers['ratelimit'], undefined);
    assert.equal(answer.headers['ratelimit-policy'], undefined);
  }
});

test('an upgrade counts as any request, also one that is refused', async (t) => {
  const limited = await startApi({
    context: { rate_limits: { ...DEFAULT_RATE_LIMITS, principal: 2, address: 3 } },
  });
  t.after(() => limited.close());
  const who = await limited.person();
  const url = `${limited.origin.replace('http', 'ws')}/v1/instances/${newId('inst')}/vm/forward?port=80`;
  const statuses: (number | undefined)[] = [];
  for (let asked = 0; asked < 3; asked += 1) {
    const socket = new WebSocket(url, { headers: { authorization: `Bearer ${who.session}` } });
    socket.on('error', () => undefined);
    const [, answer] = await once(socket, 'unexpected-response');
    statuses.push(answer.statusCode);
    answer.resume();
  }
  assert.deepEqual(statuses, [404, 404, 429]);
});

test('past the changes of an hour a principal adds no row, can still remove and stop, and others go on', async (t) => {
  const limited = await startApi({ context: { rate_limits: { ...DEFAULT_RATE_LIMITS, changes: 4 } } });
  t.after(() => limited.close());
  const who = await limited.person();
  const { id } = await limited.instance(who);
  const ports = `/v1/instances/${id}/ports`;
  const publish = () => limited.as(who).post<{ id: string }>(ports, { port: 8080 });
  const port = await publish();
  // Neither what is refused nor what is removed counts.
  assert.equal((await limited.as(who).post(ports, { port: 0 })).status, 400);
  assert.equal((await limited.as(who).delete(`${ports}/${port.body.id}`)).status, 204);
  assert.equal((await publish()).status, 201);
  assert.equal((await limited.as(who).post(`/v1/instances/${id}/vm`)).status, 202);
  const refused = await publish();
  assertError(refused, 'RATE_LIMITED', /4 changes in an hour/);
  assert.ok(Number(refused.headers['retry-after']) > 3_000);
  assertError(await limited.as(who).patch('/v1/me', { name: 'Another Name' }), 'RATE_LIMITED');

  const other = await limited.person({ org_id: who.org_id });
  assert.equal((await limited.as(other).post(ports, { port: 8081 })).status, 201, 'a colleague');
  assert.equal((await limited.as(who).delete(`/v1/instances/${id}/vm?force=true`)).status, 202);
  assert.equal((await limited.as(who).delete(`/v1/instances/${id}`)).status, 202);
});

test('the changes of an hour begin anew when it is over', () => {
  let now_ms = 0;
  const changes = new ChangeCounts(() => now_ms);
  const add = () => {
    changes.require('user', 2);
    changes.add('user');
  };
  add();
  now_ms = 3_599_000;
  add();
  assert.throws(add, { code: 'RATE_LIMITED', retry_after_seconds: 1 });
  now_ms = 3_600_000;
  add();
});
