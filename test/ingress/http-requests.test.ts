/** Requests through the proxy of HTTP ports: what reaches the guest, and what comes back. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, type RequestOptions, request as sendRequest } from 'node:http';
import { connect as connectHttp2 } from 'node:http2';
import { connect } from 'node:net';
import { test } from 'node:test';
import type { Cleanup } from '../support/cleanup.ts';
import { guestServer, NAME, proxyTo, rawGuest, sendRaw, tellAll } from '../support/http-ingress.ts';
import { HOST } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

interface Told {
  readonly method: string;
  readonly url: string;
  readonly fields: string[];
  readonly trailers: string[];
  readonly body: string;
}

const telling = (t: Cleanup) =>
  guestServer(t, async (request, response) => {
    const body = Buffer.concat(await request.toArray()).toString();
    response.setHeader('x-guest', 'yes').end(tellAll(request, body));
  });

async function ask(
  port: number,
  options: RequestOptions,
  body: string | Buffer = '',
): Promise<{ answer: IncomingMessage; body: string }> {
  const sent = sendRequest({ host: HOST, port, ...options, headers: { host: NAME, ...options.headers } });
  sent.end(body);
  // An early answer may end the connection while the body is sent.
  sent.on('error', () => undefined);
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  return { answer, body: Buffer.concat(await answer.toArray()).toString() };
}

const valueIn = (told: Told, name: string) => {
  const at = told.fields.findIndex((each, index) => index % 2 === 0 && each.toLowerCase() === name);
  return at === -1 ? undefined : told.fields[at + 1];
};

test('target, Host and fields arrive as sent, with those that only Berth sets', async (t) => {
  const address = await telling(t);
  const { port } = await proxyTo(t, { address: () => address });
  const heard = await sendRaw(
    port,
    `GET /a//b/../%2e?q=%20"x|y HTTP/1.1\r\nHOST: ${NAME}:7480\r\nX-MiXed: a\r\nX-Twice: 1\r\nX-Twice: 2\r\nConnection: close, x-hop\r\nX-Hop: 1\r\n` +
      `X-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX_Forwarded_Proto: https\r\nX-Real-IP: 6.6.6.6\r\nKeep-Alive: 3\r\nProxy-Connection: x\r\n` +
      'Authorization: Basic dTpw\r\nCookie: a=1; berth-port=secret; b=2\r\n\r\n',
  );
  const told = JSON.parse(
    heard.slice(heard.indexOf('\r\n\r\n') + 4).replace(/^[0-9a-f]+\r\n|\r\n0\r\n\r\n$/g, ''),
  ) as Told;
  assert.equal(told.url, '/a//b/../%2e?q=%20"x|y');
  const fields = told.fields.flatMap((name, at) => (at % 2 ? [] : [`${name}: ${told.fields[at + 1]}`]));
  assert.deepEqual(fields, [
    `Host: ${NAME}:7480`,
    'X-MiXed: a',
    'X-Twice: 1',
    'X-Twice: 2',
    'Authorization: Basic dTpw',
    'Cookie: a=1; b=2',
    `X-Forwarded-For: ${HOST}`,
    'X-Forwarded-Proto: http',
    `X-Forwarded-Host: ${NAME}:7480`,
    `Forwarded: for=${HOST};host="${NAME}:7480";proto=http`,
    'Connection: keep-alive',
  ]);
});

test('a Berth credential reaches no guest, on a public port either', async (t) => {
  const address = await telling(t);
  const { port } = await proxyTo(t, { address: () => address });
  for (const [sent, arrives] of [
    ['Bearer berth_live_abc', undefined],
    ['bearer   berth_sess_abc', undefined],
    ['Bearer berth_live_abc more', undefined],
    ['Bearer "berth_live_abc"', undefined],
    ['Basic dTpw, Bearer berth_live_abc', undefined],
    ['token berth_live_abc', undefined],
    ['berth_live_abc', undefined],
    ['Bearer of-the-guest', 'Bearer of-the-guest'],
    ['Basic dTpw', 'Basic dTpw'],
  ] as const) {
    const { body } = await ask(port, { headers: { authorization: sent, cookie: '__Host-berth-port=x' } });
    const told = JSON.parse(body) as Told;
    assert.equal(valueIn(told, 'authorization'), arrives, sent);
    assert.equal(valueIn(told, 'cookie'), undefined);
  }
});

test('a guest sets cookies for its own hostname alone, and none of Berth', async (t) => {
  const address = await guestServer(t, (_request, response) => {
    response.setHeader('set-cookie', [
      'a=1; Domain=localhost; Path=/',
      'b=2; path=/;DOMAIN = .localhost',
      'c=3; HttpOnly',
      'berth-port=stolen',
      '__Host-berth-port=stolen; Secure; Path=/',
      '=berth-port=stolen',
      ' = __host-berth-port=stolen; Path=/',
    ]);
    response.setHeader('clear-site-data', '"cookies"');
    response.end();
  });
  const { port } = await proxyTo(t, { address: () => address });
  const { answer } = await ask(port, {});
  assert.deepEqual(answer.headers['set-cookie'], ['a=1; Path=/', 'b=2; path=/', 'c=3; HttpOnly']);
  assert.equal(answer.headers['clear-site-data'], undefined);
});

test('64 MiB in each direction arrive complete, by length and in chunks', async (t) => {
  const bytes = randomBytes(64 * 1024 * 1024);
  const digest = (data: Buffer) => createHash('sha256').update(data).digest('hex');
  const address = await guestServer(t, async (request, response) => {
    const heard = digest(Buffer.concat(await request.toArray()));
    response.setHeader('x-digest', heard).end(bytes);
  });
  const { port } = await proxyTo(t, { address: () => address });
  for (const headers of [{ 'content-length': bytes.length }, { 'transfer-encoding': 'chunked' }]) {
    const sent = sendRequest({ host: HOST, port, method: 'POST', headers: { host: NAME, ...headers } });
    sent.end(bytes);
    const [answer] = (await once(sent, 'response')) as [IncomingMessage];
    assert.equal(answer.headers['x-digest'], digest(bytes));
    assert.equal(digest(Buffer.concat(await answer.toArray())), digest(bytes));
  }
});

test('trailers pass in both directions, and 100-continue is the guest’s to give', async (t) => {
  let continued = 0;
  const address = await guestServer(
    t,
    async (request, response) => {
      const body = Buffer.concat(await request.toArray()).toString();
      response.writeHead(200, { trailer: 'x-sum' });
      response.write(tellAll(request, body));
      response.addTrailers({ 'x-sum': '42', 'set-cookie': 'a=1' });
      response.end();
    },
    (server) =>
      server.on('checkContinue', (request, response) => {
        continued += 1;
        response.writeContinue();
        server.emit('request', request, response);
      }),
  );
  const { port } = await proxyTo(t, { address: () => address });
  const sent = sendRequest({
    ...{ host: HOST, port, method: 'PUT' },
    headers: { host: NAME, expect: '100-continue', trailer: 'x-check', 'transfer-encoding': 'chunked' },
  });
  sent.flushHeaders();
  await once(sent, 'continue');
  sent.addTrailers({ 'x-check': '7', authorization: 'Bearer berth_live_x' });
  sent.end('body');
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  const told = JSON.parse(Buffer.concat(await answer.toArray()).toString()) as Told;
  assert.deepEqual([told.body, told.trailers, continued], ['body', ['x-check', '7'], 1]);
  assert.deepEqual(answer.trailers, { 'x-sum': '42' });
});

test('an event stream arrives event by event, and its end by the client ends it for the guest', async (t) => {
  const closed = Promise.withResolvers<void>();
  const address = await guestServer(t, (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.flushHeaders();
    response.write('data: 1\n\n');
    response.once('close', () => closed.resolve());
  });
  const { port } = await proxyTo(t, { address: () => address });
  const sent = sendRequest({ host: HOST, port, headers: { host: NAME } }).end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  const [first] = (await once(answer, 'data')) as [Buffer];
  assert.equal(String(first), 'data: 1\n\n');
  answer.destroy();
  await closed.promise;
});

test('a response that the guest cuts off is cut off for the client', async (t) => {
  const address = await rawGuest(t, (socket) =>
    socket.end('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf'),
  );
  const { port } = await proxyTo(t, { address: () => address });
  const sent = sendRequest({ host: HOST, port, headers: { host: NAME } }).end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  await assert.rejects(answer.toArray(), { code: 'ECONNRESET' });
});

test('an early answer of the guest arrives whole although the body was not read', async (t) => {
  const address = await guestServer(t, (_request, response) => {
    response.writeHead(413).end('too large');
  });
  const { port } = await proxyTo(t, { address: () => address });
  const { answer, body } = await ask(port, { method: 'POST' }, Buffer.alloc(8 * 1024 * 1024));
  assert.deepEqual([answer.statusCode, body], [413, 'too large']);
});

test('HTTP/2 without TLS: request, body, trailers, and a field that a proxy could take for its own', async (t) => {
  const address = await telling(t);
  const { origin, port } = await proxyTo(t, { address: () => address });
  const session = connectHttp2(origin);
  t.after(() => session.destroy());
  const stream = session.request({
    ...{ ':method': 'POST', ':path': '/h2?x=1', ':authority': NAME, 'x-forwarded-for': '6.6.6.6' },
  });
  stream.end('from h2');
  const [headers] = await once(stream, 'response');
  const told = JSON.parse(Buffer.concat(await stream.toArray()).toString()) as Told;
  assert.deepEqual(
    [headers[':status'], told.method, told.url, told.body],
    [200, 'POST', '/h2?x=1', 'from h2'],
  );
  assert.deepEqual([valueIn(told, 'host'), valueIn(told, 'x-forwarded-for')], [NAME, HOST]);
  const get = session.request({ ':path': '/', ':authority': NAME });
  const plain = JSON.parse(Buffer.concat(await get.toArray()).toString()) as Told;
  assert.deepEqual(
    [valueIn(plain, 'transfer-encoding'), valueIn(plain, 'content-length')],
    [undefined, undefined],
  );
  // The same address speaks HTTP/1.1 too.
  assert.equal((await ask(port, {})).answer.statusCode, 200);
});

test('HTTP/2: an upload whose client disconnects looks cut to the guest', async (t) => {
  const ends: string[] = [];
  let begun = 0;
  const address = await guestServer(t, (request) => {
    request.on('error', () => undefined);
    request.once('data', () => {
      begun += 1;
    });
    request.once('end', () => ends.push('whole'));
    request.once('close', () => ends.push('closed'));
  });
  const { origin, port } = await proxyTo(t, { address: () => address });
  // Over all listening sockets.
  const sockets = Array.from({ length: 100 }, () => connect(port, HOST));
  for (const socket of sockets) {
    const session = connectHttp2(origin, { createConnection: () => socket });
    session.on('error', () => undefined);
    const stream = session.request({ ':method': 'POST', ':path': '/', ':authority': NAME });
    stream.on('error', () => undefined).write('half');
  }
  await until('all are under way', () => begun === sockets.length);
  for (const socket of sockets) socket.destroy();
  await until('all have ended', () => ends.filter((each) => each === 'closed').length === sockets.length);
  assert.ok(!ends.includes('whole'));
});

test('each answer of the ingress itself has an X-Request-Id, which its error names', async (t) => {
  const address = await rawGuest(t, (socket) => socket.end('HTTP/1.1 600 No\r\n\r\n'));
  const { port, origin } = await proxyTo(t, { address: () => address, redeem: () => 'cookie' });
  const H = `Host: ${NAME}\r\nConnection: close\r\n\r\n`;
  const requests: Record<string, string> = {
    'a guest that answers nonsense': `GET / HTTP/1.1\r\n${H}`,
    'an unknown hostname': 'GET / HTTP/1.1\r\nHost: other.localhost\r\nConnection: close\r\n\r\n',
    'a page': `GET / HTTP/1.1\r\nAccept: text/html\r\n${H}`,
    'a refused upgrade': `GET / HTTP/1.1\r\nHost: ${NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
    CONNECT: `CONNECT ${NAME}:80 HTTP/1.1\r\n${H}`,
    'bytes that are no request': 'nonsense\r\n\r\n',
    'fields beyond the limit': `GET / HTTP/1.1\r\nX: ${'a'.repeat(40_000)}\r\n${H}`,
    'a name that is asked for': `GET /.berth/tls-allowed?domain=${NAME} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`,
    'a redeemed ticket': `GET /.berth/open?ticket=x HTTP/1.1\r\n${H}`,
  };
  for (const [what, bytes] of Object.entries(requests)) {
    const heard = await sendRaw(port, bytes);
    const [, id = ''] = /^x-request-id: (req_[0-9a-f]{24})\r$/im.exec(heard) ?? [];
    assert.notEqual(id, '', `${what}: ${heard}`);
    if (!/asked for|ticket/.test(what)) assert.ok(heard.split('\r\n\r\n')[1]?.includes(id), what);
  }
  const session = connectHttp2(origin);
  t.after(() => session.destroy());
  const [headers] = await once(session.request({ ':path': '/', ':authority': NAME }), 'response');
  assert.equal(headers[':status'], 502);
  assert.match(headers['x-request-id'], /^req_[0-9a-f]{24}$/);
});

test('unknown hostnames get 404 with one body, a port without a listener 502, a VM without wake 503', async (t) => {
  const { port, apply } = await proxyTo(t, { address: () => null });
  const unknown = await ask(port, { headers: { host: 'other.localhost' } });
  assert.equal(unknown.answer.statusCode, 404);
  const gone = await ask(port, { headers: { host: 'another.localhost', accept: 'text/html' } });
  assert.match(gone.answer.headers['content-type'] ?? '', /text\/html/);
  const silent = await ask(port, {});
  assert.deepEqual([silent.answer.statusCode, JSON.parse(silent.body).error.code], [502, 'BAD_GATEWAY']);
  assert.match(silent.body, /Nothing listens on port 8080 .* 127\.0\.0\.1 only is not reachable/);
  apply({ target: null });
  const stopped = await ask(port, {});
  assert.deepEqual([stopped.answer.statusCode, stopped.answer.headers['retry-after']], [503, '5']);
});

test('on another host: the guest’s answer comes through the tunnel, a port without a listener is 502, and a woken program is awaited', async (t) => {
  const address = await telling(t);
  let listening = false;
  const { port, apply } = await proxyTo(
    t,
    { address: () => (listening ? address : null) },
    { route: { target: 'tunnel' } },
  );
  const silent = await ask(port, {});
  assert.deepEqual([silent.answer.statusCode, JSON.parse(silent.body).error.code], [502, 'BAD_GATEWAY']);
  apply({ target: null, wake: true });
  const woken = ask(port, { method: 'POST' }, 'x'.repeat(1_000_000));
  apply({ target: 'tunnel', resets: 1 });
  const began_ms = performance.now();
  await until('it would have failed', () => performance.now() - began_ms > 1_500);
  listening = true;
  const { answer, body } = await woken;
  assert.deepEqual([answer.statusCode, (JSON.parse(body) as Told).body.length], [200, 1_000_000]);
});

test('a guest that does not speak HTTP, or says nothing, is a bad gateway', async (t) => {
  for (const said of [
    'SSH-2.0-OpenSSH\r\n',
    '',
    'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  ]) {
    const address = await rawGuest(t, (socket) => socket.end(said));
    const { port } = await proxyTo(t, { address: () => address });
    const { answer, body } = await ask(port, {});
    assert.deepEqual([answer.statusCode, JSON.parse(body).error.code], [502, 'BAD_GATEWAY'], said);
  }
});

test('a request wakes its VM, and its body arrives once the guest is there', async (t) => {
  const address = await telling(t);
  let woken = 0;
  const under_test = await proxyTo(
    t,
    { address: () => (under_test.proxy && woken > 1 ? address : null), wake: () => void woken++ },
    { route: { target: null, wake: true } },
  );
  const answered = ask(under_test.port, { method: 'POST' }, 'x'.repeat(1_000_000));
  await until('it asks again while it waits', () => woken > 1);
  under_test.apply({ target: 'local' });
  const { answer, body } = await answered;
  assert.deepEqual([answer.statusCode, (JSON.parse(body) as Told).body.length], [200, 1_000_000]);
});

test('requests that come together wait together for the program of a VM that has just started', async (t) => {
  const address = await telling(t);
  let looks = 0;
  const { port, proxy, apply } = await proxyTo(
    t,
    { address: () => (looks++ < 3 ? null : address) },
    { route: { target: null, wake: true } },
  );
  const asked = Array.from({ length: 8 }, () => ask(port, {}));
  await until('all wait', () => [...proxy.ports][0]?.waiting === asked.length);
  apply({ target: 'local' });
  const statuses = (await Promise.all(asked)).map(({ answer }) => answer.statusCode);
  assert.deepEqual(
    statuses,
    asked.map(() => 200),
  );
});

test('a request whose way is lost before a byte was sent finds the next', async (t) => {
  const address = await telling(t);
  const closed = await rawGuest(t, () => undefined);
  const ways = [`${HOST}:1`, `${HOST}:1`, address];
  const { port } = await proxyTo(t, { address: () => ways.shift() ?? closed });
  const { body } = await ask(port, { method: 'POST' }, 'x'.repeat(300_000));
  assert.equal((JSON.parse(body) as Told).body.length, 300_000);
});

test('a restart between two ways takes nothing of the body', async (t) => {
  const address = await telling(t);
  let looks = 0;
  const under_test = await proxyTo(t, {
    address: () => {
      if (looks++ === 0) return `${HOST}:1`;
      under_test.apply({ resets: 1 });
      return address;
    },
  });
  const { body } = await ask(under_test.port, { method: 'POST' }, 'x'.repeat(300_000));
  assert.equal((JSON.parse(body) as Told).body.length, 300_000);
});

test('use, errors and statuses are reported', async (t) => {
  const address = await guestServer(t, (request, response) => {
    response.statusCode = request.url === '/bad' ? 404 : 200;
    response.end('12345');
  });
  const { port, reports, route } = await proxyTo(
    t,
    { address: () => address },
    { limits: { report_ms: 50 } },
  );
  await ask(port, { method: 'POST' }, 'abc');
  await ask(port, { path: '/bad' });
  const total = () =>
    reports.reduce(
      (sum, { ports, responses }) =>
        [
          sum[0] + (ports[0]?.requests ?? 0),
          sum[1] + (ports[0]?.sent_bytes ?? 0),
          sum[2] + (ports[0]?.received_bytes ?? 0),
          sum[3] + (responses[1] ?? 0),
          sum[4] + (responses[3] ?? 0),
        ] as [number, number, number, number, number],
      [0, 0, 0, 0, 0] as [number, number, number, number, number],
    );
  await until('all is reported', () => JSON.stringify(total()) === '[2,10,3,1,1]');
  assert.equal(reports[0]?.ports[0]?.port_id, route.port_id);
});

test('a guest that answers statuses of no class does not end the reports', async (t) => {
  let status = 600;
  const address = await rawGuest(t, (socket) => {
    socket.end(`HTTP/1.1 ${status} x\r\nContent-Length: 2\r\n\r\nok`);
  });
  const { port, reports } = await proxyTo(t, { address: () => address }, { limits: { report_ms: 20 } });
  for (status of [600, 999]) await ask(port, {});
  status = 200;
  await ask(port, {});
  const counted = (of: number) =>
    reports.reduce((sum, { responses }) => sum + (responses[of] ?? Number.NaN), 0);
  await until('the good answer is reported', () => counted(1) === 1);
  const requests = reports.flatMap(({ ports }) => ports).reduce((sum, each) => sum + each.requests, 0);
  assert.equal(requests, 3, 'their requests are counted all the same');
});

test('bytes beyond ASCII in fields pass unchanged in both directions', async (t) => {
  const value = Buffer.from('café').toString('latin1');
  let heard = '';
  const address = await rawGuest(t, (socket, said) => {
    heard += said;
    socket.end(Buffer.from(`HTTP/1.1 200 OK\r\nX-Name: ${value}\r\nContent-Length: 0\r\n\r\n`, 'latin1'));
  });
  const { port } = await proxyTo(t, { address: () => address });
  const request = `GET / HTTP/1.1\r\nHost: ${NAME}\r\nX-Name: ${value}\r\nConnection: close\r\n\r\n`;
  const answer = await sendRaw(port, request);
  assert.match(heard, /x-name: café\r\n/i);
  assert.ok(answer.includes(`X-Name: ${value}\r\n`), answer);

  const session = connectHttp2(`http://${HOST}:${port}`);
  t.after(() => session.destroy());
  const stream = session.request({ ':path': '/', ':authority': NAME, 'x-name': value });
  const [fields] = await once(stream, 'response');
  assert.equal(fields['x-name'], value);
});
