/** What the adapter answers without Berth: refusals, which must not end it. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { after, before, test } from 'node:test';
import { Adapter } from './adapter-server.ts';

const SANDBOX = '0'.repeat(26);
const KEY = 'berth_live_not_to_be_logged';
const logged: string[] = [];
const adapter = new Adapter({
  berth_url: 'http://127.0.0.1:1',
  key: randomBytes(32),
  domain: 'localhost',
  api_key: 'berth_live_own',
  log: (line) => logged.push(line),
});

before(async () => {
  await once(adapter.server.listen(0, '127.0.0.1'), 'listening');
});
after(() => adapter.close());

async function answerTo(request: string): Promise<string> {
  const socket = connect((adapter.server.address() as AddressInfo).port, '127.0.0.1');
  socket.end(request);
  return text(socket);
}

const post = (path: string, body: string, ...headers: string[]) =>
  answerTo(
    [
      `POST ${path} HTTP/1.1`,
      'Host: a',
      'Connection: close',
      ...headers,
      `Content-Length: ${body.length}`,
      '',
      body,
    ].join('\r\n'),
  );

test('a request without what it needs is refused', async () => {
  const key = `X-API-Key: ${KEY}`;
  const cases: [number, Promise<string>][] = [
    [401, post('/v2/sandboxes', '{}')],
    [400, post('/v2/sandboxes', '[]', key)],
    [400, post('/v2/sandboxes', '{', key)],
    [400, post('/v2/sandboxes', '{"timeout": -1}', key)],
    [400, post('/v2/sandboxes', '{"envVars": {"A;b": "c"}}', key)],
    [501, post('/v2/sandboxes', '{"network": {}}', key)],
    [413, post('/v2/sandboxes', `"${'x'.repeat(1024 * 1024)}"`, key)],
    [404, post('/sandboxes/unknown/pause', '{}', key)],
    [501, post('/v2/templates', '{}', key)],
    [501, post('//', '{}', key)],
    [401, post('/process.Process/List', '{}', key)],
    [401, post('/files?path=/a', 'x', `E2b-Sandbox-Id: ${SANDBOX}`, 'X-Access-Token: AAAA')],
    [502, answerTo(`GET / HTTP/1.1\r\nHost: 3000-${SANDBOX}.localhost\r\nConnection: close\r\n\r\n`)],
    [404, answerTo(`GET / HTTP/1.1\r\nHost: 3000-${SANDBOX}.a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n`)],
  ];
  for (const [status, answer] of cases) assert.match(await answer, new RegExp(`^HTTP/1.1 ${status} `));
  assert.doesNotMatch(logged.join('\n'), new RegExp(KEY));
});
