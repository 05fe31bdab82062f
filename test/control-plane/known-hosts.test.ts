/** Berth answers to its configured names only, and accepts the Origin of its own pages only. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { connect } from 'node:net';
import { json, text } from 'node:stream/consumers';
import { after, describe, test } from 'node:test';
import { createMetricsApp, RequestMetrics } from '../../src/control-plane/monitoring/metrics.ts';
import { apiForFile } from '../support/api.ts';

const api = await apiForFile({
  context: { public_url: 'https://berth.example', hosts: ['alt.example', '10.1.2.3'] },
});
const PASSWORD = 'correct horse battery';
const owner = await api.person({ password: PASSWORD });
const { port } = new URL(api.origin);
const LOGIN = { email: owner.email, password: PASSWORD };

async function ask(host: string, path: string, origin = api.origin): Promise<IncomingMessage> {
  const [response] = await once(request(origin + path, { headers: { host } }).end(), 'response');
  return response;
}
async function statusOf(host: string, path: string): Promise<number | undefined> {
  const response = await ask(host, path);
  response.resume();
  return response.statusCode;
}
async function login(
  headers: Record<string, string>,
): Promise<{ status: number | undefined; code: string | undefined }> {
  const sent = request(`${api.origin}/v1/auth/login`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
  });
  const [response] = (await once(sent.end(JSON.stringify(LOGIN)), 'response')) as [IncomingMessage];
  const body = (await json(response)) as { error?: { code: string } };
  return { status: response.statusCode, code: body.error?.code };
}
/** The answer to these bytes, from a server that disconnects afterwards. */
async function raw(head: string, origin = api.origin): Promise<string> {
  const socket = connect(Number(new URL(origin).port), '127.0.0.1');
  socket.end(`${head}\r\n\r\n`);
  return text(socket);
}

const KNOWN = [
  ...(['berth.example', 'BERTH.example:8443', 'alt.example', 'alt.example:7400', '10.1.2.3'] as const),
  ...([
    'localhost',
    'LocalHost:1',
    '127.0.0.1',
    `127.8.8.8:${port}`,
    '[::1]',
    '[0:0:0:0:0:0:0:1]:7400',
  ] as const),
];
const UNKNOWN = [
  ...([
    'evil.example',
    `evil.example:${port}`,
    '127.0.0.1.evil.example',
    '10.0.0.1',
    '[::2]',
    '0.0.0.0',
  ] as const),
  ...([
    'berth.example.evil.example',
    'evil.berth.example',
    'x.localhost',
    'localhost.',
    'localhosts',
  ] as const),
  ...([
    'evil@localhost',
    'localhost@evil',
    'localhost/evil',
    'localhost,evil',
    'localhost:x',
    ':7400',
    '[::1',
  ] as const),
];

describe('a known Host is served', () => {
  for (const host of KNOWN) {
    test(host, async () => {
      assert.equal(await statusOf(host, '/v1/me'), 401);
      assert.equal(await statusOf(host, '/v1/openapi.json'), 200);
    });
  }
});

describe('421 MISDIRECTED_REQUEST', () => {
  for (const host of UNKNOWN) {
    test(`Host: ${host}, on routes, pages and unknown paths`, async () => {
      for (const path of ['/v1/me', '/v1/openapi.json', '/docs/', '/nothing']) {
        const response = await ask(host, path);
        const { error } = (await json(response)) as { error: { code: string; request_id: string } };
        assert.deepEqual([response.statusCode, error.code], [421, 'MISDIRECTED_REQUEST'], path);
        assert.equal(response.headers['x-request-id'], error.request_id);
      }
    });
  }

  test('a page under another name cannot log in, although its Origin matches its Host', async () => {
    const headers = { host: `evil:${port}`, origin: `http://evil:${port}` };
    assert.deepEqual(await login(headers), { status: 421, code: 'MISDIRECTED_REQUEST' });
  });

  test('before authentication', async () => {
    const sent = request(`${api.origin}/v1/me`, {
      headers: { host: 'evil.example', authorization: `Bearer ${owner.session}` },
    });
    const [response] = (await once(sent.end(), 'response')) as [IncomingMessage];
    assert.equal(response.resume().statusCode, 421);
  });

  test('a request line and a Host header that differ, one of them unknown', async () => {
    const get = (target: string, host: string) =>
      raw(`GET ${target}/v1/me HTTP/1.1\r\nHost: ${host}\r\nConnection: close`);
    assert.match(await get('http://evil.example', 'localhost'), /^HTTP\/1\.1 421 /);
    assert.match(await get('http://localhost', 'evil.example'), /^HTTP\/1\.1 421 /);
    assert.match(await get('http://localhost', 'localhost'), /^HTTP\/1\.1 401 /);
  });

  test('an empty Host', async () => {
    assert.match(await raw('GET /v1/me HTTP/1.1\r\nHost:\r\nConnection: close'), /^HTTP\/1\.1 421 /);
  });

  test('an upgrade for a console', async () => {
    const path = '/v1/instances/inst_00000000000000000000000000/vm/console/stream?ticket=x';
    const head = (host: string) =>
      `GET ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket`;
    assert.match(await raw(head('evil.example')), /^HTTP\/1\.1 421 [\s\S]*MISDIRECTED_REQUEST/);
    assert.match(await raw(head('localhost')), /^HTTP\/1\.1 401 /);
  });

  test('/metrics, which needs no credential; it is served at its own address', async () => {
    const metrics = new RequestMetrics();
    const scraped = createMetricsApp(metrics, { ...api.context, hosts: ['10.1.2.3'] });
    after(() => scraped.close());
    const origin = await scraped.listen({ host: '127.0.0.1', port: 0 });
    for (const [host, status] of [
      ['evil.example', 421],
      ['10.1.2.3:9464', 200],
      ['localhost', 200],
    ] as const) {
      const response = await ask(host, '/metrics', origin);
      assert.equal(response.resume().statusCode, status, host);
    }
  });
});

test('probes are answered with any Host: a load balancer uses an address', async () => {
  assert.equal(await statusOf('192.0.2.7', '/healthz'), 200);
  assert.equal(await statusOf('192.0.2.7', '/readyz'), 200);
});

test('400: several Host headers, because a proxy may have checked another one', async () => {
  const head = 'GET /v1/me HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close';
  assert.match(await raw(head), /^HTTP\/1\.1 400 [\s\S]*more than one Host/);
});

test('HTTP/1.0 without Host is served, because no browser sends it', async () => {
  assert.match(await raw('GET /v1/me HTTP/1.0'), /^HTTP\/1\.1 401 /);
});

describe('a login accepts the Origin of our own pages', () => {
  const own = [
    'https://berth.example',
    `http://localhost:${port}`,
    `http://127.0.0.1:${port}`,
    `http://[::1]:${port}`,
    `http://berth.example:${port}`,
    `http://alt.example:${port}`,
    'https://alt.example',
  ];
  for (const origin of own) {
    test(origin, async () => {
      assert.equal((await login({ origin })).status, 200);
    });
  }
});

describe('403 FORBIDDEN for any other Origin, with any Host', () => {
  const foreign = [
    'http://localhost',
    'http://localhost:1',
    'https://localhost',
    `https://localhost:${port}`,
    'https://127.0.0.1',
    'http://berth.example',
    'http://alt.example',
    'https://alt.example:8443',
    `http://evil.example:${port}`,
    `http://x.localhost:${port}`,
    `http://localhost:${port}/`,
    `http://evil@localhost:${port}`,
    'null',
    '',
  ];
  for (const origin of foreign) {
    test(origin, async () => {
      // The page's host equals the requested host.
      const said = URL.parse(origin)?.host ?? 'localhost';
      for (const host of [
        'localhost',
        'berth.example',
        ...((KNOWN as readonly string[]).includes(said) ? [said] : []),
      ]) {
        assert.deepEqual(await login({ host, origin }), { status: 403, code: 'FORBIDDEN' }, host);
      }
    });
  }

  test('a forged port in Host makes no Origin trusted', async () => {
    assert.deepEqual(await login({ host: 'localhost:1', origin: 'http://localhost:1' }), {
      status: 403,
      code: 'FORBIDDEN',
    });
  });
});
