/** The API of files, with a scripted host in place of the guest: conditions, ranges, hostile hosts, broken streams. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { request } from 'undici';
import { etagOf } from '../../src/control-plane/http/mutate.ts';
import { streamFrame } from '../../src/protocol/file-stream.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { doneByHost, FIELDS, type FileHost, nextFileCall } from '../support/file-host.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const { agent } = api;
const running = await instanceIn(api, owner, 'running');
const files = `/v1/instances/${running.id}/files`;
const file = `${files}?path=%2Fapp.conf`;
const ETAG = etagOf('ab-c-1');
const CONTENT = 'hello world';

/** Serves a read as a guest does. */
async function served(asked: Promise<Awaited<ReturnType<typeof client.get>>>) {
  const host = await nextFileCall(agent);
  host.say('opened', FIELDS);
  const range = await host.hear('range').catch(() => null);
  if (range !== null) {
    const [offset, length] = [Number(range.readBigUInt64BE()), Number(range.readBigUInt64BE(8))];
    host.say('content', CONTENT.slice(offset, offset + length));
    host.say('done');
  }
  return asked;
}
const get = (headers: Record<string, string> = {}) => served(client.get(file, { headers }));

describe('read', () => {
  test('the content comes with its size, ETag, mode, owner and time', async () => {
    const answer = await get();
    assert.deepEqual([answer.status, answer.text], [200, CONTENT]);
    assert.partialDeepStrictEqual(answer.headers, {
      ...{ 'content-length': '11', etag: ETAG, 'accept-ranges': 'bytes' },
      ...{ 'berth-file-mode': '0640', 'berth-file-user': 'root' },
      ...{ 'last-modified': 'Tue, 14 Nov 2023 22:13:20 GMT', 'content-type': 'application/octet-stream' },
    });
  });
  test('a range is a part, if If-Range names this file', async () => {
    const part = await get({ range: 'bytes=6-', 'if-range': ETAG });
    assert.deepEqual([part.status, part.text], [206, 'world']);
    assert.equal(part.headers['content-range'], 'bytes 6-10/11');
    const whole = await get({ range: 'bytes=6-', 'if-range': '"other"' });
    assert.deepEqual([whole.status, whole.text], [200, CONTENT]);
  });
  test('416 for a range of nothing, 304 for the same file, 412 for another', async () => {
    const none = await get({ range: 'bytes=11-' });
    assertError(none, 'RANGE_NOT_SATISFIABLE');
    assert.equal(none.headers['content-range'], 'bytes */11');
    assert.equal((await get({ 'if-none-match': ETAG })).status, 304);
    assertError(await get({ 'if-match': '"other"' }), 'PRECONDITION_FAILED');
  });
  test('a path reaches the host with all of its bytes', async () => {
    for (const [text, path] of [
      ['%2Ftmp%2F%FF%0A%25+%2B', '/tmp/%FF%0A%25%20%2B'],
      ['/tmp/../é', '/tmp/../%C3%A9'],
    ]) {
      const asked = client.get(`${files}?path=${text}`);
      const host = await nextFileCall(agent);
      assert.equal(host.call.action.path, path);
      host.say('failed', '2\0No such file');
      assertError(await asked, 'NOT_FOUND');
    }
  });
  for (const path of ['', 'tmp', '.', '%00', '/a%00b', '/%', '/%2', `/${'a'.repeat(4095)}`]) {
    test(`400: path=${path.slice(0, 20)}`, async () => {
      assertError(await client.get(`${files}?path=${path}`), 'INVALID_REQUEST');
    });
  }
  test('409 where the VM does not run; 404 in another organisation', async () => {
    const off = await api.instance(owner);
    assertError(await client.get(`/v1/instances/${off.id}/files?path=/a`), 'VM_NOT_RUNNING');
    assertError(await api.as(await api.person()).get(file), 'NOT_FOUND');
  });
});

describe('a stream that breaks', () => {
  /** Bytes of the body until its end or its break. */
  async function broken(serve: (host: FileHost) => void): Promise<string> {
    const asked = request(`${api.origin}${file}`, { headers: { authorization: `Bearer ${owner.session}` } });
    const host = await nextFileCall(agent);
    host.say('opened', FIELDS);
    await host.hear('range');
    serve(host);
    const { statusCode, body } = await asked;
    return body.text().then(
      // The break may have come before the answer's head.
      (text) => (statusCode === 200 ? `whole: ${text}` : 'broken'),
      () => 'broken',
    );
  }
  test('an error, an early end, too few and too many bytes break the connection', async () => {
    const begin = (host: FileHost) => host.say('content', 'hello');
    const ends: readonly ((host: FileHost) => void)[] = [
      (host) => host.say('failed', '5\0Input/output error'),
      (host) => host.line.destroy(),
      (host) => host.line.end(),
      (host) => host.say('done'),
      (host) => host.say('content', 'x'.repeat(20)),
      (host) => void host.line.write(Buffer.alloc(1_000, 0xff)),
    ];
    for (const end of ends) {
      const found = await broken((host) => {
        begin(host);
        end(host);
      });
      assert.equal(found, 'broken', String(end));
    }
  });
  test('a guest that sends garbage gets 503 for its caller, and no more', async () => {
    for (const bytes of [
      Buffer.alloc(200, 0xff),
      streamFrame(1, Buffer.from('nonsense')),
      streamFrame(1, Buffer.from('file\x0099999999999999999999\x000644\0root\x001\x001\0a\0x')),
      streamFrame(9, Buffer.alloc(0)),
    ]) {
      const asked = client.get(file);
      const host = await nextFileCall(agent);
      host.line.write(bytes);
      assertError(await asked, 'UNAVAILABLE');
    }
  });
  test('an entry whose name leads out of its folder is refused', async () => {
    for (const name of ['', '.', '..', 'a/b', '/etc', '../x']) {
      const asked = client.get(`${files}/list?path=/srv`);
      const host = await nextFileCall(agent);
      const fields = FIELDS.subarray(0, FIELDS.lastIndexOf(0) + 1);
      host.say('entry', Buffer.concat([fields, Buffer.from(name)]));
      host.say('done');
      assertError(await asked, 'UNAVAILABLE');
    }
  });
  test('more entries than were asked for are refused', async () => {
    const asked = client.get(`${files}/list?path=/&limit=2`);
    const host = await nextFileCall(agent);
    for (let count = 0; count < 5; count++) host.say('entry', FIELDS);
    assertError(await asked, 'UNAVAILABLE');
  });
});

describe('write', () => {
  const put = (raw: string | Buffer, headers: Record<string, string> = {}, query = '') =>
    client.call('PUT', `${file}${query}`, { raw, headers });

  test('the body reaches the guest; a new file is 201, a replaced one 200, with its ETag', async () => {
    const asked = put('content', { 'content-type': 'application/json' }, '&mode=0600&user=app');
    const host = await nextFileCall(agent);
    assert.partialDeepStrictEqual(host.call.action, { verb: 'write', mode: '0600', user: 'app' });
    host.say('opened', FIELDS);
    assert.equal((await host.hear('content')).toString(), 'content');
    assert.equal((await host.hear('commit')).length, 0);
    host.say('done', Buffer.concat([Buffer.from('0\0'), FIELDS]));
    const { status, headers, body } = await asked;
    assert.deepEqual([status, headers['etag']], [200, ETAG]);
    assert.partialDeepStrictEqual(body, {
      path: '/app.conf',
      mode: '0640',
      size: 11,
      mtime: '2023-11-14T22:13:20.500Z',
    });
    assert.equal((await doneByHost(agent, client.call('PUT', file))).status, 201);
  });
  test('conditions are checked at the beginning, and reach the guest for the end', async () => {
    const exists = put('x', { 'if-none-match': '*' });
    (await nextFileCall(agent)).say('opened', FIELDS);
    assertError(await exists, 'PRECONDITION_FAILED');
    const other = put('x', { 'if-match': '"other"' });
    (await nextFileCall(agent)).say('opened', FIELDS);
    assertError(await other, 'PRECONDITION_FAILED');
    const gone = put('x', { 'if-match': ETAG });
    (await nextFileCall(agent)).say('opened');
    assertError(await gone, 'PRECONDITION_FAILED');
    const same = put('x', { 'if-match': ETAG });
    const host = await nextFileCall(agent);
    host.say('opened', FIELDS);
    await host.hear('content');
    assert.equal((await host.hear('commit')).toString(), 'ab-c-1');
    host.say('failed', 'changed');
    assertError(await same, 'PRECONDITION_FAILED');
    assertError(await put('x', { 'if-none-match': '"a"' }), 'INVALID_REQUEST');
  });
  test('a full disk in the middle is 507, although the caller still sends', async () => {
    const asked = put(Buffer.alloc(8 * 2 ** 20));
    const host = await nextFileCall(agent);
    host.say('opened');
    await host.hear('content');
    host.say('failed', '28\0No space left on device');
    assertError(await asked, 'DISK_FULL');
  });
  test('a guest that is done before all was sent, or that is cut off, has written nothing', async () => {
    const early = put(Buffer.alloc(8 * 2 ** 20));
    const host = await nextFileCall(agent);
    host.say('opened');
    host.say('done', Buffer.concat([Buffer.from('1\0'), FIELDS]));
    assertError(await early, 'UNAVAILABLE');
    const cut = put('x');
    const other = await nextFileCall(agent);
    other.say('opened');
    other.line.destroy();
    assertError(await cut, 'UNAVAILABLE');
  });
});

describe('list, move, directory, delete', () => {
  test('pages follow one another by name', async () => {
    const entry = (name: string) =>
      Buffer.concat([FIELDS.subarray(0, -'app.conf'.length), Buffer.from(name, 'latin1')]);
    const list = async (query: string, names: readonly string[]) => {
      const asked = client.get<{ data: { name: string; path: string }[]; next_cursor: string }>(
        `${files}/list?path=/etc/&limit=1${query}`,
      );
      const host = await nextFileCall(agent);
      for (const name of names) host.say('entry', entry(name));
      host.say('done');
      return { action: host.call.action, page: (await asked).body };
    };
    const first = await list('', ['a\xff', 'b']);
    assert.deepEqual(
      first.page.data.map(({ path }) => path),
      ['/etc/a%FF'],
    );
    const { action, page } = await list(`&cursor=${first.page.next_cursor}`, ['b']);
    assert.partialDeepStrictEqual(action, { verb: 'list', path: '/etc', after: 'a%FF', count: 2 });
    assert.equal(page.next_cursor, null);
  });
  test('failures of the guest are errors that say what to do', async () => {
    for (const [said, code, words] of [
      ['39\0Directory not empty', 'CONFLICT', /recursive=true/],
      ['link\0x', 'CONFLICT', /not root's/],
      ['no_name', 'INVALID_REQUEST', /name/],
      ['1\0Operation \u001b[31mnot permitted', 'CONFLICT', /Operation not permitted/],
      ['failed\0at line 7', 'UNAVAILABLE', /^[^7]*$/],
    ] as const) {
      const asked = client.delete(file);
      (await nextFileCall(agent)).say('failed', said);
      assertError(await asked, code, words);
    }
  });
  test('bodies are checked', async () => {
    for (const body of [{}, { from: '/a' }, { from: 'a', to: '/b' }, { from: '/a', to: '/%' }]) {
      assertError(await client.post(`${files}/move`, body), 'INVALID_REQUEST');
    }
    for (const body of [{ path: 'a' }, { path: '/a', mode: '9' }, { path: '/a', user: '' }]) {
      assertError(await client.post(`${files}/directory`, body), 'INVALID_REQUEST');
    }
  });
});
