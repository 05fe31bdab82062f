/** The adapter for E2B before the real API, with a scripted agent in place of the host: ends, credentials, bodies. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { request } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { after, describe, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { Adapter } from '../../adapters/e2b/src/adapter-server.ts';
import { apiForFile } from '../support/api.ts';
import { FIELDS, nextFileCall } from '../support/file-host.ts';
import { makeKey, makeServiceKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const MIB = 1024 * 1024;
const api = await apiForFile();
const owner = await api.person();
const { agent } = api;
const SCOPE = 'instances:read instances:write vm:read vm:write';
const { key: own_key } = await makeServiceKey(api.db, owner.org_id, SCOPE);
const { key } = await makeKey(api.db, owner, SCOPE);
const tokens_key = randomBytes(32);
const logged: string[] = [];

/** An adapter that was started just now. */
async function startAdapter(connections?: number): Promise<{ adapter: Adapter; port: number; url: string }> {
  const adapter = new Adapter({
    berth_url: api.origin,
    key: tokens_key,
    domain: 'localhost',
    api_key: own_key,
    log: (line) => logged.push(line),
    ...(connections === undefined ? {} : { connections }),
  });
  after(() => adapter.close());
  await adapter.start();
  await once(adapter.server.listen(0, '127.0.0.1'), 'listening');
  const { port } = adapter.server.address() as AddressInfo;
  return { adapter, port, url: `http://127.0.0.1:${port}` };
}

const { url } = await startAdapter();

async function sandbox(labels: Record<string, string> = {}) {
  const { id } = await instanceIn(api, owner, 'running');
  const all = { 'e2b-sandbox': 'base', 'e2b-on-timeout': 'kill', 'e2b-ends-at': inMs(3_600_000), ...labels };
  const { status, text: said } = await api.as(owner).patch(`/v1/instances/${id}`, { labels: all });
  assert.equal(status, 200, said);
  return { id, sandbox_id: id.slice('inst_'.length), path: `/v1/instances/${id}` };
}
const inMs = (ms: number) => new Date(Date.now() + ms).toISOString();

async function control(method: string, path: string, api_key: string, body: object = {}): Promise<Response> {
  const headers = { 'x-api-key': api_key, 'content-type': 'application/json' };
  return fetch(url + path, { method, headers, ...(method === 'GET' ? {} : { body: JSON.stringify(body) }) });
}

async function stateOf(path: string): Promise<string> {
  const { status, body } = await api.as(owner).get<{ deleting: boolean; vm: { state: string } }>(path);
  return status === 404 || body.deleting ? 'deleted' : body.vm.state;
}

/** A write of some content. */
async function doneByHostInPieces<T>(asked: Promise<T>): Promise<T> {
  const host = await nextFileCall(agent);
  host.say('opened');
  const hasContent = () =>
    host.hear('content').then(
      () => true,
      () => false,
    );
  while (await hasContent());
  host.say('done', Buffer.concat([Buffer.from('1\0'), FIELDS]));
  return asked;
}

describe('the end of a sandbox', () => {
  test('comes after a restart of the adapter, whoever made it, and without any use of it', async () => {
    const [over, soon, later] = [
      await sandbox({ 'e2b-ends-at': inMs(-3_600_000) }),
      await sandbox({ 'e2b-ends-at': inMs(1_000) }),
      await sandbox({ 'e2b-ends-at': inMs(3_600_000) }),
    ];
    const paused = await sandbox({ 'e2b-ends-at': inMs(-1_000), 'e2b-on-timeout': 'pause' });
    await startAdapter();
    await until('both are gone', async () =>
      [await stateOf(over.path), await stateOf(soon.path)].every((state) => state === 'deleted'),
    );
    await until('it is paused', async () => (await stateOf(paused.path)) === 'suspending');
    assert.equal(await stateOf(later.path), 'running');
  });

  test('comes although the last key that used it may only read, and its maker’s key was revoked', async () => {
    const { path, sandbox_id } = await sandbox();
    const maker = await makeKey(api.db, owner, SCOPE);
    assert.equal(
      (await control('POST', `/sandboxes/${sandbox_id}/timeout`, maker.key, { timeout: 2 })).status,
      204,
    );
    await api.db.deleteFrom('api_keys').where('id', '=', maker.id).execute();
    const { key: reading } = await makeKey(api.db, owner, 'instances:read vm:read');
    assert.equal((await control('GET', `/sandboxes/${sandbox_id}`, reading)).status, 200);
    assert.equal((await control('GET', '/v2/sandboxes', reading)).status, 200);
    await until('it is gone', async () => (await stateOf(path)) === 'deleted');
  });

  test('is refused where it could not come: of another organisation nothing stays', async () => {
    const stranger = await api.person();
    const theirs = await makeKey(api.db, stranger, SCOPE);
    const refused = await control('POST', '/v2/sandboxes', theirs.key, { templateID: 'base' });
    assert.equal(refused.status, 403);
    assert.match(await refused.text(), /serves the organisation of its own key/);
    const { body } = await api.as(stranger).get<{ data: { deleting: boolean }[] }>('/v1/instances');
    assert.ok(body.data.every(({ deleting }) => deleting));
  });
});

test('a guest gets no credential of Berth or E2B, by requests and by upgrades', async () => {
  const { sandbox_id } = await sandbox();
  const { port: fresh } = await startAdapter();
  const fields = [
    `Host: 3000-${sandbox_id}.localhost`,
    `X-API-Key: ${key}`,
    'X-Access-Token: AAAA',
    'E2B-Traffic-Access-Token: BBBB',
    `Authorization: Bearer ${key}`,
    `X-Other: see ${key}`,
    'Cookie: berth-port=1; theirs=2; __Host-berth_session=3',
    'X-Own: mine',
  ];
  for (const more of [['Connection: close'], ['Connection: Upgrade', 'Upgrade: echo']]) {
    const socket = connect(fresh, '127.0.0.1');
    socket.write(`GET /path HTTP/1.1\r\n${[...fields, ...more].join('\r\n')}\r\n\r\n`);
    const { id } = await agent.nextCall('port');
    const line = await agent.client.openConsole(id);
    line.on('error', () => undefined);
    let got = '';
    while (!got.includes('\r\n\r\n')) got += String((await once(line, 'data'))[0]);
    socket.destroy();
    line.destroy();
    assert.match(got, /^GET \/path HTTP\/1.1\r\n/);
    assert.match(got, /\r\nCookie: theirs=2\r\n/);
    assert.match(got, /\r\nX-Own: mine\r\n/);
    assert.doesNotMatch(got, /berth_|AAAA|BBBB|session|X-Other|X-API-Key/i);
  }
});

describe('an upload', () => {
  const headersOf = async (sandbox_id: string) => {
    const connected = await control('POST', `/sandboxes/${sandbox_id}/connect`, key);
    assert.equal(connected.status, 200);
    const { envdAccessToken } = (await connected.json()) as { envdAccessToken: string };
    return { 'e2b-sandbox-id': sandbox_id, 'x-access-token': envdAccessToken };
  };
  const PATH = '/files?path=/tmp/a&username=root';

  test('of one file is passed on as it comes, also packed by gzip', async () => {
    const headers = await headersOf((await sandbox()).sandbox_id);
    const sent = request(`${url}${PATH}`, { method: 'POST', headers });
    sent.setHeader('content-type', 'application/octet-stream');
    sent.write('first');
    const host = await nextFileCall(agent);
    host.say('opened');
    // Before the request has ended.
    assert.equal(String(await host.hear('content')), 'first');
    sent.end(' last');
    assert.equal(String(await host.hear('content')), ' last');
    await host.hear('commit');
    const [answer] = await Promise.all([
      once(sent, 'response').then(([response]) => text(response)),
      host.say('done', Buffer.concat([Buffer.from('1\0'), FIELDS])),
    ]);
    assert.deepEqual(JSON.parse(answer), [{ name: 'a', path: '/tmp/a', type: 'file' }]);

    const packed = { ...headers, 'content-type': 'application/octet-stream', 'content-encoding': 'gzip' };
    const unpacked = fetch(url + PATH, { method: 'POST', headers: packed, body: gzipSync('unpacked') });
    const other = await nextFileCall(agent);
    other.say('opened');
    assert.equal(String(await other.hear('content')), 'unpacked');
    await other.hear('commit');
    other.say('done', Buffer.concat([Buffer.from('1\0'), FIELDS]));
    assert.equal((await unpacked).status, 200);
  });

  test('of a form has room in memory for its caller: more at a time is to be repeated', async () => {
    const headers = await headersOf((await sandbox()).sandbox_id);
    const form = { ...headers, 'content-type': 'multipart/form-data; boundary=x' };
    // Its body never comes.
    const asks = { ...form, 'content-length': 60 * MIB, expect: '100-continue' };
    const held = request(`${url}${PATH}`, { method: 'POST', headers: asks }).on('error', () => undefined);
    held.flushHeaders();
    await once(held, 'continue');
    /** What is no form gets 400 where there is room for it. */
    const answerTo = async (mib: number) => {
      const answer = await fetch(url + PATH, {
        method: 'POST',
        headers: form,
        body: Buffer.alloc(mib * MIB),
      });
      return `${answer.status} ${answer.headers.get('retry-after')}`;
    };
    assert.equal(await answerTo(5), '429 1');
    assert.equal(await answerTo(3), '400 null');
    assert.equal(await answerTo(65), '413 null');
    // Another caller has room of its own.
    const { key: other } = await makeKey(api.db, owner, SCOPE);
    const { sandbox_id } = await sandbox();
    const connected = await control('POST', `/sandboxes/${sandbox_id}/connect`, other);
    const { envdAccessToken } = (await connected.json()) as { envdAccessToken: string };
    const body = new FormData();
    body.append('file', new Blob([new Uint8Array(MIB)]), '/tmp/b');
    const theirs = { 'e2b-sandbox-id': sandbox_id, 'x-access-token': envdAccessToken };
    const written = fetch(`${url}/files?username=root`, { method: 'POST', headers: theirs, body });
    assert.equal((await doneByHostInPieces(written)).status, 200);
    held.destroy();
    await until('the room is given back', async () => (await answerTo(5)) === '400 null');
  });

  test('that is not gzip is refused, and the connection goes on', async () => {
    const headers = await headersOf((await sandbox()).sandbox_id);
    const packed = { ...headers, 'content-type': 'application/octet-stream', 'content-encoding': 'gzip' };
    const wrong = await fetch(url + PATH, { method: 'POST', headers: packed, body: 'not packed' });
    assert.equal(wrong.status, 400);
    assert.match(await wrong.text(), /not gzip/);
  });
});

test('idle connections are bounded: the oldest is ended for a new one, and requests are answered', async (t) => {
  const { port, url } = await startAdapter(8);
  const idle: Socket[] = [];
  for (let n = 0; n < 12; n++) {
    const socket = connect(port, '127.0.0.1');
    t.after(() => socket.destroy());
    socket.on('error', () => undefined);
    await once(socket, 'connect');
    idle.push(socket);
  }
  await until('the oldest are ended', () => idle.slice(0, 8).every((socket) => socket.closed));
  assert.equal(idle.at(-1)?.closed, false);
  assert.equal((await fetch(`${url}/sandboxes`)).status, 401);
});
