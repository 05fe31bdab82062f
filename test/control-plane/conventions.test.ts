/** Conventions of every route: the precedence of errors, bodies and their types, request ids, the form of errors. */
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { describe, test } from 'node:test';
import { createApp } from '../../src/control-plane/app.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile, startApi } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const owner = await api.person();
const JSON_TYPE = { 'content-type': 'application/json' };

describe('the precedence of errors', () => {
  const body = '{"nonsense":';
  const path = `/v1/instances/${newId('inst')}/vm?nonsense=1`;
  const call = (token?: string) =>
    (token === undefined ? api.client : api.as(token)).call('POST', path, { raw: body, headers: JSON_TYPE });

  test('401 comes first', async () => {
    assertError(await call(), 'UNAUTHENTICATED');
  });
  test('then 403', async () => {
    assertError(await call((await makeKey(api.db, owner, 'vm:read')).key), 'FORBIDDEN');
  });
  test('then 400', async () => {
    assertError(await call(owner.session), 'INVALID_REQUEST');
  });
  test('400 before 404: a malformed query on an unknown instance', async () => {
    assertError(await api.as(owner).post(path), 'INVALID_REQUEST');
    assertError(await api.as(owner).get(`/v1/instances/${newId('inst')}/vm?wait=x`), 'INVALID_REQUEST');
  });
  test('404 before 409: the state of an invisible resource stays hidden', async () => {
    const { id } = await api.instance(owner);
    assertError(await api.as(owner).post(`/v1/instances/${id}/vm/restart`), 'VM_NOT_RUNNING');
    assertError(await api.as(await api.person()).post(`/v1/instances/${id}/vm/restart`), 'NOT_FOUND');
  });
  test('400 before 409', async () => {
    const { id } = await api.instance(owner);
    assertError(await api.as(owner).post(`/v1/instances/${id}/vm/restart`, { x: 1 }), 'INVALID_REQUEST');
  });
});

describe('bodies', () => {
  const empty: Record<string, Parameters<typeof api.client.call>[2]> = {
    'no body and no type': {},
    'no body, with the type': { headers: JSON_TYPE },
    'an empty body, with the type': { raw: '', headers: JSON_TYPE },
    'an empty object': { json: {} },
    'the type with a charset': { json: {}, headers: { 'content-type': 'application/json; charset=utf-8' } },
  };
  for (const [what, options] of Object.entries(empty)) {
    test(`a POST without required fields takes ${what}`, async () => {
      const { id } = await api.instance(owner);
      const answer = await api.as(owner).call('POST', `/v1/instances/${id}/vm`, options);
      assert.equal(answer.status, 202, answer.text);
    });
  }
  test('malformed JSON is 400', async () => {
    for (const raw of [
      '{',
      '{"name":"a"} x',
      "{'name':'a'}",
      '\u0000',
      '['.repeat(100_000),
      '{"name":"\xff"',
    ]) {
      const answer = await api.as(owner).call('POST', '/v1/instances', { raw, headers: JSON_TYPE });
      assertError(answer, 'INVALID_REQUEST');
    }
  });
  test('a body that is not UTF-8 is 400, and is not decoded to another text', async () => {
    const raw = Buffer.from('{"name":"caf\xe9","scope":"vm:read"}', 'latin1');
    const answer = await api.as(owner).call('POST', '/v1/api-keys', { raw, headers: JSON_TYPE });
    assertError(answer, 'INVALID_REQUEST');
  });
  const wrong: readonly [string, () => Promise<unknown>, RegExp][] = [
    ['a name', () => post('/v1/api-keys', { name: 'a\nb', scope: '*' }), /printable characters/],
    ['an empty name', () => post('/v1/api-keys', { name: '', scope: '*' }), /name must not be empty/],
    ['an instance', () => post('/v1/instances', { name: 'UPPER' }), /name must be 1 to 63 of a to z/],
    [
      'a label',
      () => post('/v1/instances', { name: 'a', labels: { '-x': '' } }),
      /-x must be 1 to 63 letters, .* to be the key of a label/,
    ],
    [
      'an hour',
      () => post('/v1/instances', { name: 'a', idle_timeout_seconds: 1 }),
      /seconds must be >= 60$/,
    ],
    ['a limit', () => api.as(owner).get('/v1/instances?limit=-1'), /limit must be a whole number/],
    ['a state', () => api.as(owner).get('/v1/notifications?status=x'), /status must be one of unread, read$/],
    ['a key set', putKeys, /body has none of the accepted forms. Either `ssh_key_ids`, or `mode`/],
  ];
  async function putKeys() {
    const { id } = await api.instance(owner);
    return api.as(owner).put(`/v1/instances/${id}/ssh-keys`, { mode: 'explicit', ssh_key_ids: [] });
  }
  function post(path: string, body: object) {
    return api.as(owner).post(path, body);
  }
  for (const [what, call, words] of wrong) {
    test(`400 describes in words what is wrong with ${what}`, async () => {
      const { message } = assertError((await call()) as Parameters<typeof assertError>[0], 'INVALID_REQUEST');
      assert.match(message, words);
      assert.doesNotMatch(message, /pattern|allowed values|schema/);
    });
  }
  test('another type is 415', async () => {
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/xml', 'nonsense']) {
      const headers = { 'content-type': type };
      const answer = await api.as(owner).call('POST', '/v1/instances', { raw: '{"name":"a"}', headers });
      assertError(answer, 'UNSUPPORTED_MEDIA_TYPE', /application\/json/);
    }
    assertError(
      await api.as(owner).call('POST', '/v1/instances', { raw: '{"name":"a"}' }),
      'UNSUPPORTED_MEDIA_TYPE',
    );
  });
  test('an empty body may have any type, also in chunks', async () => {
    const send = async (path: string, type: string, body: string) => {
      const lines = [
        `POST ${path} HTTP/1.1`,
        'Host: localhost',
        `Authorization: Bearer ${owner.session}`,
        ...(type === '' ? [] : [`Content-Type: ${type}`]),
        'Connection: close',
        body,
      ];
      return Number((await talk(lines.join('\r\n'))).split(' ')[1]);
    };
    const bodies = ['Content-Length: 0\r\n\r\n', 'Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n'];
    for (const type of ['', 'text/plain', 'application/x-www-form-urlencoded']) {
      for (const body of bodies) {
        assert.equal(await send('/v1/notifications/read-all', type, body), 200, `${type} ${body}`);
        assert.equal(await send('/v1/nothing', type, body), 404);
        if (type !== '') assert.equal(await send('/v1/auth/refresh', type, body), 415, 'JSON only');
      }
    }
    assert.equal(await send('/v1/nothing', 'text/plain', 'Content-Length: 2\r\n\r\n{}'), 404);
  });
  test('a body of more than 1 MiB is 413', async () => {
    const body = { name: 'x'.repeat(1024 * 1024) };
    assertError(await api.as(owner).post('/v1/instances', body), 'PAYLOAD_TOO_LARGE');
    assertError(await api.client.post('/v1/instances', body), 'UNAUTHENTICATED');
  });
});

describe('unknown paths and methods', () => {
  for (const path of [
    '/',
    '/v1',
    '/v1/',
    '/v2/instances',
    '/v1/instances/',
    '/v1//instances',
    '/v1/%ZZ',
    `/v1/instances/${'x'.repeat(300)}`,
  ]) {
    test(`${path.slice(0, 30)} is 404 in the common form`, async () => {
      assertError(await api.as(owner).get(path), 'NOT_FOUND');
    });
  }
  test('a method that the path does not serve is 404', async () => {
    assertError(await api.as(owner).put('/v1/instances'), 'NOT_FOUND');
  });
});

/** Everything that the server answers to these bytes until it disconnects. */
function talk(bytes: string): Promise<string> {
  const { port } = new URL(api.origin);
  return new Promise((resolve, reject) => {
    let text = '';
    const socket = connect(Number(port), '127.0.0.1', () => socket.write(bytes));
    socket.setEncoding('utf8').on('data', (data) => {
      text += data;
    });
    socket.once('error', reject).once('close', () => resolve(text));
  });
}

test('HTTP/1.1 without Host, and an unknown Expect, are answered in the common form', async () => {
  const id = /\r\nx-request-id: req_[0-9a-f]{24}\r\n/i;
  const without = await talk('GET /v1/me HTTP/1.1\r\nConnection: close\r\n\r\n');
  assert.match(without, /^HTTP\/1\.1 400 .*"code":"INVALID_REQUEST"/s);
  assert.match(without, id);
  const expecting = await talk(
    'GET /v1/me HTTP/1.1\r\nHost: localhost\r\nExpect: x\r\nConnection: close\r\n\r\n',
  );
  assert.match(expecting, /^HTTP\/1\.1 401 .*"code":"UNAUTHENTICATED"/s);
  assert.match(expecting, id);
});

test('bytes that are not HTTP get an error in the common form', async () => {
  const answer = await talk('NONSENSE\r\n\r\n');
  assert.match(answer, /^HTTP\/1\.1 400 .*\r\nX-Request-Id: req_[0-9a-f]{24}\r\n/s);
  const { error } = JSON.parse(answer.slice(answer.indexOf('{')));
  assert.equal(error.code, 'INVALID_REQUEST');
});

test('a caller that prefers problem details gets errors in that form', async () => {
  const answer = await api.as(owner).call('POST', '/v1/instances', {
    raw: '{"name":"web","nonsense":1}',
    headers: { ...JSON_TYPE, accept: 'application/problem+json' },
  });
  assert.equal(answer.status, 400);
  assert.equal(answer.headers['content-type'], 'application/problem+json');
  const { detail, request_id, ...rest } = JSON.parse(answer.text);
  assert.equal(request_id, answer.headers['x-request-id']);
  assert.match(detail, /nonsense/);
  assert.deepEqual(rest, {
    ...{ type: 'about:blank', title: 'Bad Request', status: 400, code: 'INVALID_REQUEST' },
    details: [{ field: 'nonsense', issue: 'is not a known field' }],
  });
});

for (const [accept, prefers] of [
  ['application/problem+json', true],
  ['application/json;q=0.9, Application/Problem+JSON', true],
  ['application/problem+json, application/json, */*', true],
  ['*/*, application/problem+json;q=0.1', true],
  ['application/json, application/problem+json', false],
  ['application/json, application/problem+json; q=0.5', false],
  ['application/problem+json;q=0', false],
  ['application/problem+json;q=nonsense', false],
  ['application/*', false],
] as const) {
  test(`the form of an error for "Accept: ${accept}"`, async () => {
    const { headers } = await api.client.get('/v1/me', { headers: { accept } });
    const type = prefers ? 'application/problem+json' : 'application/json; charset=utf-8';
    assert.equal(headers['content-type'], type);
  });
}

describe('headers', () => {
  test('every response has its own request id, also when the caller sends one', async () => {
    const ids = new Set<string>();
    for (const path of ['/healthz', '/v1/instances', '/v1/nothing', '/v1/me']) {
      for (const client of [api.client, api.as(owner)]) {
        const answer = await client.get(path, { headers: { 'x-request-id': 'mine', 'request-id': 'mine' } });
        const id = String(answer.headers['x-request-id']);
        assert.match(id, /^req_[0-9a-f]{24}$/);
        ids.add(id);
        assert.equal(answer.headers['x-content-type-options'], 'nosniff');
      }
    }
    assert.equal(ids.size, 8);
  });
  test('no response names the server software', async () => {
    const { headers } = await api.client.get('/healthz');
    assert.equal(headers['x-powered-by'], undefined);
    assert.equal(headers['server'], undefined);
  });
});

test('an internal failure is 500 without internal detail', async (t) => {
  const secret = 'inner detail of the database';
  t.mock.method(api.context.db, 'selectFrom', () => {
    throw new Error(secret);
  });
  const answer = await api.as(owner).get('/v1/instances');
  assertError(answer, 'INTERNAL');
  assert.ok(!answer.text.includes(secret));
});

test('a request on an open connection while the server stops is 503 in the common form', async (t) => {
  const ending = await startApi();
  t.after(() => ending.close());
  const person = await ending.person();
  const { id } = await instanceIn(ending, person, 'starting');
  const waiters = t.mock.method(ending.hub, 'subscribe');
  const head = (path: string) =>
    `GET ${path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${person.session}\r\n\r\n`;
  const socket = connect(Number(new URL(ending.origin).port), '127.0.0.1');
  socket.write(head(`/v1/instances/${id}/vm?wait=running&timeout_seconds=60`));
  await until('the first waits', () => waiters.mock.callCount() > 0);
  const closed = ending.app.close();
  await until('the server stops', () => !ending.app.server.listening);
  const answers = text(socket);
  socket.write(head('/v1/me'));
  await ending.hub.stop();
  const [, first = '', second = ''] = (await answers).split('HTTP/1.1 ');
  assert.match(first, /^200 /);
  assert.match(second, /^503 .*"code":"UNAVAILABLE"/s);
  assert.match(second, /\r\nx-request-id: req_[0-9a-f]{24}\r\n/i);
  assert.match(second, /\r\nretry-after: 1\r\n/i);
  await closed;
});

test('a hundred calls on one kept-alive connection leave no listener behind', async (t) => {
  const warnings: Error[] = [];
  const note = (warning: Error) => void warnings.push(warning);
  process.on('warning', note);
  t.after(() => process.off('warning', note));
  const { id } = await instanceIn(api, owner, 'stopped');
  for (let i = 0; i < 100; i++) {
    await api.as(owner).get(`/v1/instances/${id}/vm?wait=stopped`);
    await api.as(owner).post(`/v1/instances/${id}/vm/flush`);
  }
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(
    warnings.map((each) => each.name),
    [],
  );
});

test('the wait of a caller that disconnects ends', async (t) => {
  const { id } = await instanceIn(api, owner, 'starting');
  const gone = new AbortController();
  const waits = t.mock.method(api.hub, 'waitFor');
  const path = `/v1/instances/${id}/vm?wait=running&timeout_seconds=60`;
  const waiting = api.as(owner).get(path, { signal: gone.signal });
  waiting.catch(() => undefined);
  const mine = () => waits.mock.calls.find(({ arguments: [topic, of] }) => topic === 'instance' && of === id);
  await until('it waits', () => mine());
  gone.abort();
  await assert.rejects(waiting);
  let over = false;
  void mine()?.result?.then(() => {
    over = true;
  });
  // Long before the minute of its wait is over.
  await until('nobody waits', () => over);
});

test('every schema compiles, which the running API does at first requests', async () => {
  const at_once = await createApp(api.context, {});
  await at_once.ready();
  await at_once.close();
});
