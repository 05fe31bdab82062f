/** Private ports: who is let in, what the guest sees of it, and when it ends. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, type RequestOptions, request as sendRequest } from 'node:http';
import { test } from 'node:test';
import { WebSocket, WebSocketServer } from 'ws';
import type { AuthoriseHttpRequest, AuthoriseHttpResponse } from '../../src/protocol/ingress-types.ts';
import type { Cleanup } from '../support/cleanup.ts';
import { guestServer, NAME, proxyTo, type Scripted } from '../support/http-ingress.ts';
import { HOST } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

const KEY = 'berth_live_key';
/** Its response has no end. */
const LONG = '/long';
const COOKIE = 'berth-port=the-cookie';

function authorise({ bearer, cookie }: AuthoriseHttpRequest): AuthoriseHttpResponse {
  if (bearer === KEY) return { outcome: 'allowed', by: 'bearer' };
  if (bearer === 'berth_live_other') return { outcome: 'forbidden' };
  if (bearer === null && cookie === 'the-cookie') return { outcome: 'allowed', by: 'cookie' };
  return { outcome: 'unauthenticated' };
}

async function scene(
  t: Cleanup,
  scripted: Partial<Scripted> = {},
  options: Parameters<typeof proxyTo>[2] = {},
) {
  const seen: IncomingMessage[] = [];
  const sockets = new WebSocketServer({ noServer: true });
  const address = await guestServer(
    t,
    (request, response) => {
      seen.push(request);
      request.resume();
      if (request.url === LONG) response.write('inside');
      else response.end('inside');
    },
    (server) =>
      server.on('upgrade', (request, socket, head) => {
        seen.push(request);
        sockets.handleUpgrade(request, socket, head, (each) => each.on('message', (data) => each.send(data)));
      }),
  );
  const under_test = await proxyTo(
    t,
    { address: () => address, authorise, ...scripted },
    { ...options, route: { access: 'private', ...options.route } },
  );
  const ask = async (headers: RequestOptions['headers'] = {}, more: RequestOptions = {}) => {
    const sent = sendRequest({
      host: HOST,
      port: under_test.port,
      ...more,
      headers: { host: NAME, ...headers },
    });
    sent.end();
    const [answer] = (await once(sent, 'response')) as [IncomingMessage];
    return { status: answer.statusCode, answer, body: Buffer.concat(await answer.toArray()).toString() };
  };
  const websocket = (headers: Record<string, string>) =>
    new WebSocket(`ws://${HOST}:${under_test.port}/`, { headers: { host: NAME, ...headers } });
  return { ...under_test, ask, websocket, seen };
}

test('without a credential 401, with another’s 403, and neither reaches nor wakes the guest', async (t) => {
  let woken = 0;
  const { ask, seen, websocket } = await scene(
    t,
    { wake: () => void woken++ },
    { route: { target: null, wake: true } },
  );
  assert.deepEqual((await ask()).status, 401);
  assert.deepEqual((await ask({ authorization: 'Bearer berth_live_wrong' })).status, 401);
  assert.deepEqual((await ask({ authorization: 'Bearer something-of-the-guest' })).status, 401);
  assert.deepEqual((await ask({ authorization: 'Basic dTpw' })).status, 401);
  assert.deepEqual((await ask({ authorization: 'Bearer berth_live_other' })).status, 403);
  assert.deepEqual((await ask({ cookie: `${COOKIE}; ${COOKIE}` })).status, 401);
  const [refused] = await once(
    websocket({}).on('error', () => undefined),
    'unexpected-response',
  ).then(([, answer]) => [answer as IncomingMessage]);
  assert.equal(refused?.statusCode, 401);
  assert.deepEqual([seen.length, woken], [0, 0]);
});

test('a bearer token or the cookie opens the port, and the guest sees neither', async (t) => {
  const { ask, seen } = await scene(t);
  assert.equal((await ask({ authorization: `Bearer ${KEY}`, cookie: 'own=1' })).body, 'inside');
  assert.equal((await ask({ cookie: `own=1; ${COOKIE}`, authorization: 'Basic dTpw' })).body, 'inside');
  assert.deepEqual(
    seen.map(({ headers }) => [headers.authorization, headers.cookie]),
    [
      [undefined, 'own=1'],
      ['Basic dTpw', 'own=1'],
    ],
  );
});

test('with the cookie, another site’s page may not change anything and not open a WebSocket', async (t) => {
  const { ask, seen, websocket, port } = await scene(t);
  const foreign: Record<string, string>[] = [
    { origin: 'http://evil.localhost' },
    { origin: `http://${NAME}.evil` },
    { origin: 'null' },
    { 'sec-fetch-site': 'cross-site' },
  ];
  for (const headers of foreign) {
    assert.equal((await ask({ cookie: COOKIE, ...headers }, { method: 'POST' })).status, 403);
    assert.equal((await ask({ cookie: COOKIE, ...headers }, { method: 'DELETE' })).status, 403);
    const socket = websocket({ cookie: COOKIE, ...headers });
    socket.on('error', () => undefined);
    const [, answer] = (await once(socket, 'unexpected-response')) as [unknown, IncomingMessage];
    assert.equal(answer.statusCode, 403);
  }
  assert.equal(seen.length, 0);
  const own = { cookie: COOKIE, origin: `http://${NAME}:${port}`, host: `${NAME}:${port}` };
  assert.equal((await ask(own, { method: 'POST' })).status, 200);
  assert.equal((await ask({ cookie: COOKIE, origin: 'http://evil.localhost' })).status, 200);
  // A bearer token is no browser's.
  assert.equal(
    (await ask({ authorization: `Bearer ${KEY}`, origin: 'http://evil.localhost' }, { method: 'POST' }))
      .status,
    200,
  );
});

test('a ticket becomes a cookie of this hostname alone, and a used one is refused', async (t) => {
  const tickets = new Set(['good']);
  const redeem = (ticket: string) => (tickets.delete(ticket) ? 'the-cookie' : null);
  const { ask, seen } = await scene(t, { redeem });
  const first = await ask({}, { path: '/.berth/open?ticket=good' });
  assert.deepEqual([first.status, first.answer.headers.location], [303, '/']);
  assert.deepEqual(first.answer.headers['set-cookie'], [
    'berth-port=the-cookie; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax',
  ]);
  assert.equal((await ask({}, { path: '/.berth/open?ticket=good' })).status, 401);
  assert.equal((await ask({}, { path: '/.berth/other' })).status, 404);
  for (const path of ['/.berth?ticket=good', `http://${NAME}/.berth/other`]) {
    assert.equal((await ask({ authorization: `Bearer ${KEY}` }, { path })).status, 404, path);
  }
  assert.equal((await ask({ host: 'other.localhost' }, { path: '/.berth/open?ticket=good' })).status, 404);
  assert.equal(seen.length, 0);
});

test('an answer about a credential is kept for two seconds at most', async (t) => {
  let asked = 0;
  const { ask } = await scene(
    t,
    {
      authorise: (each) => {
        asked += 1;
        return authorise(each);
      },
    },
    { limits: { permission_ms: 2_000 } },
  );
  const headers = { authorization: `Bearer ${KEY}` };
  await Promise.all(Array.from({ length: 10 }, () => ask(headers)));
  assert.equal(asked, 1);
  await until('it asks again', async () => (await ask(headers)) && asked > 1);
});

test('without the control plane nobody is let in', async (t) => {
  const { ask, seen } = await scene(t, { authorise: () => Promise.reject(new Error('away')) });
  assert.equal((await ask({ authorization: `Bearer ${KEY}` })).status, 503);
  assert.equal(seen.length, 0);
});

type End = (scene: { revoke: () => void; apply: (change: object) => void }) => void;
const ENDINGS: [string, number, End][] = [
  ['within five seconds of the end of its credential', 5_000, ({ revoke }) => revoke()],
  ['within nine seconds of the last answer of the control plane', 9_000, ({ revoke }) => revoke()],
  [
    'within five seconds of the end of its port',
    5_000,
    ({ apply }) => apply({ port_id: 'port_00000000000000000000000000' }),
  ],
];
for (const [when, within_ms, end] of ENDINGS) {
  test(`an open WebSocket and a long response end ${when}`, async (t) => {
    let revoked = false;
    const { websocket, apply, port } = await scene(t, {
      authorise: (each) => {
        if (revoked && when.includes('last answer')) throw new Error('away');
        return revoked ? { outcome: 'unauthenticated' } : authorise(each);
      },
    });
    const socket = websocket({ authorization: `Bearer ${KEY}` });
    await once(socket, 'open');
    socket.send('echo');
    assert.equal(String((await once(socket, 'message'))[0]), 'echo');
    const headers = { host: NAME, authorization: `Bearer ${KEY}` };
    const sent = sendRequest({ host: HOST, port, path: LONG, headers });
    sent.on('error', () => undefined).end();
    const [response] = (await once(sent, 'response')) as [IncomingMessage];
    const cut = new Promise((resolve) => response.once('error', resolve).resume());
    const began_ms = performance.now();
    end({
      revoke: () => {
        revoked = true;
      },
      apply,
    });
    await Promise.all([once(socket, 'close'), cut]);
    assert.ok(performance.now() - began_ms < within_ms, `${performance.now() - began_ms} ms`);
    assert.equal(response.complete, false);
  });
}

test('a change to private ends what was opened without a credential', async (t) => {
  const { websocket, apply } = await scene(t, {}, { route: { access: 'public' } });
  const socket = websocket({});
  await once(socket, 'open');
  apply({ access: 'private' });
  await once(socket, 'close');
});

test('behind a trusted proxy the client’s address is that of the client, and nobody else chooses it', async (t) => {
  for (const trusted of [[HOST], []]) {
    const { ask, seen } = await scene(t, {}, { route: { access: 'public' }, trusted });
    await ask({ 'x-forwarded-for': '6.6.6.6, 9.9.9.9', 'x-forwarded-proto': 'https' });
    const { 'x-forwarded-for': address, 'x-forwarded-proto': scheme } = seen[0]?.headers ?? {};
    assert.deepEqual([address, scheme], trusted.length > 0 ? ['9.9.9.9', 'https'] : [HOST, 'http']);
  }
});

test('a proxy on this machine learns which names are valid', async (t) => {
  const { ask } = await scene(t);
  const valid = async (name: string) =>
    (await ask({ host: `${HOST}:1` }, { path: `/.berth/tls-allowed?domain=${name}` })).status;
  assert.deepEqual([await valid(NAME), await valid('other.localhost'), await valid('')], [200, 404, 404]);
});
