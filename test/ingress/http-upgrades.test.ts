/** WebSockets through the proxy of HTTP ports. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect as connectHttp2 } from 'node:http2';
import { connect } from 'node:net';
import { test } from 'node:test';
import { WebSocket, WebSocketServer } from 'ws';
import { openFilesLimit } from '../../src/shared/connection-budget.ts';
import type { Cleanup } from '../support/cleanup.ts';
import { guestServer, NAME, proxyTo, rawGuest, sendRaw } from '../support/http-ingress.ts';
import { startLineProgram, startProxy } from '../support/line-program.ts';
import { HOST } from '../support/sockets.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

async function echoing(t: Cleanup): Promise<string> {
  const sockets = new WebSocketServer({
    noServer: true,
    handleProtocols: (offered) => [...offered][0] ?? false,
  });
  return guestServer(
    t,
    (_request, response) => response.writeHead(426).end('only WebSockets'),
    (server) =>
      server.on('upgrade', (request, socket, head) => {
        if (request.url === '/declined') {
          socket.end('HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Why: no\r\n\r\nno');
          return;
        }
        sockets.handleUpgrade(request, socket, head, (each) =>
          each.on('message', (data, isBinary) => each.send(data, { binary: isBinary })),
        );
      }),
  );
}

const open = (port: number, path = '/', protocols: string[] = []) =>
  new WebSocket(`ws://${HOST}:${port}${path}`, protocols, { headers: { host: NAME } });

test('messages pass in both directions, with the protocol that the guest chose', async (t) => {
  const address = await echoing(t);
  const { port } = await proxyTo(t, { address: () => address });
  const socket = open(port, '/x', ['first', 'second']);
  await once(socket, 'open');
  assert.equal(socket.protocol, 'first');
  const large = Buffer.alloc(4 * 1024 * 1024, 'a');
  socket.send(large);
  const [data] = (await once(socket, 'message')) as [Buffer];
  assert.ok(data.equals(large));
  socket.close(4_000, 'bye');
  const [code, reason] = await once(socket, 'close');
  assert.deepEqual([code, String(reason)], [4_000, 'bye']);
});

test('a guest that declines the handshake answers for itself', async (t) => {
  const address = await echoing(t);
  const { port } = await proxyTo(t, { address: () => address });
  const heard = await sendRaw(
    port,
    `GET /declined HTTP/1.1\r\nHost: ${NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
  );
  assert.match(heard, /^HTTP\/1\.1 403 Forbidden\r\n[\s\S]*X-Why: no\r\n[\s\S]*\r\n\r\nno$/);
});

test('a WebSocket wakes its VM and is joined once the guest is there', async (t) => {
  const address = await echoing(t);
  const under_test = await proxyTo(t, { address: () => address }, { route: { target: null, wake: true } });
  const socket = open(under_test.port);
  const opened = once(socket, 'open');
  await until('it waits', () => [...under_test.proxy.ports][0]?.waiting === 1);
  under_test.apply({ target: 'local' });
  await opened;
  socket.terminate();
});

test('a reset of the guest ends its WebSockets', async (t) => {
  const address = await echoing(t);
  const { port, apply } = await proxyTo(t, { address: () => address });
  const socket = open(port);
  await once(socket, 'open');
  apply({ resets: 1 });
  await once(socket, 'close');
});

test('only WebSockets are upgraded: with h2c nobody gets past the proxy', async (t) => {
  let heard = '';
  const address = await rawGuest(t, (socket, data) => {
    heard += data;
    socket.end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n');
  });
  const { port } = await proxyTo(t, { address: () => address });
  await sendRaw(
    port,
    `GET / HTTP/1.1\r\nHost: ${NAME}\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n`,
  );
  assert.doesNotMatch(heard, /upgrade|h2c|http2-settings/i);
});

test('bytes behind a handshake reach the guest only after it has accepted', async (t) => {
  const heard: string[] = [];
  const address = await rawGuest(t, (socket, data) => {
    heard.push(data);
    if (heard.length === 1)
      socket.end('HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n');
  });
  const { port } = await proxyTo(t, { address: () => address });
  const answer = await sendRaw(
    port,
    `GET / HTTP/1.1\r\nHost: ${NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: ${NAME}\r\n\r\n`,
  );
  assert.match(answer, /^HTTP\/1\.1 400 /);
  assert.doesNotMatch(heard.join(''), /smuggled/);
});

test('a WebSocket by HTTP/2 (RFC 8441) is one of HTTP/1.1 for the guest', async (t) => {
  const address = await guestServer(
    t,
    (_request, response) => response.end(),
    (server) =>
      server.on('upgrade', (request, socket) => {
        socket.write(
          `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\nX-Key: ${request.headers['sec-websocket-key'] ? 'yes' : 'no'}\r\n\r\n`,
        );
        socket.pipe(socket);
      }),
  );
  const { origin } = await proxyTo(t, { address: () => address });
  const session = connectHttp2(origin);
  t.after(() => session.destroy());
  await once(session, 'remoteSettings');
  const stream = session.request({
    ...{
      ':method': 'CONNECT',
      ':protocol': 'websocket',
      ':scheme': 'http',
      ':path': '/ws',
      ':authority': NAME,
    },
    'sec-websocket-version': '13',
  });
  const [answer] = await once(stream, 'response');
  assert.deepEqual(
    [answer[':status'], answer['x-key'], answer['sec-websocket-accept']],
    [200, 'yes', undefined],
  );
  stream.write('frames');
  assert.equal(String((await once(stream, 'data'))[0]), 'frames');
  stream.close();
});

/** Accepts WebSockets and says no more. */
const SILENT = `process.stdin.resume().once('end', () => process.exit());
  const server = require('node:net').createServer((socket) => socket.on('error', () => socket.destroy()).once('data', () =>
    socket.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n')));
  server.listen({ host: '${HOST}', port: 0, backlog: 1024 }, () => console.log(server.address().port));`;

test('ten thousand idle WebSockets take little memory, and no more while they are idle', {
  ...THOROUGH,
  timeout: 120_000,
}, async (t) => {
  const guest = await startLineProgram(['-e', SILENT]);
  t.after(guest.end);
  const proxy = await startProxy(`${HOST}:${guest.first}`);
  t.after(proxy.end);
  const before = await proxy.memory();
  // Each takes two open files of the proxy, and some machines allow a process 20,000.
  const length = Math.min(10_000, openFilesLimit() / 2 - 100);
  const opened = Array.from({ length }, (_, at) => {
    // One address of the loopback has too few ports; one instance may have 4,000.
    const socket = connect({ port: Number(proxy.port), host: HOST, localAddress: `127.0.0.${2 + (at % 4)}` });
    const host = ['bench', 'bench-2', 'bench-3'][at % 3];
    socket.write(
      `GET / HTTP/1.1\r\nHost: ${host}.localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
    );
    return { socket, answered: once(socket, 'data') };
  });
  t.after(() => {
    for (const { socket } of opened) socket.destroy();
  });
  for (const { answered } of opened) assert.match(String((await answered)[0]), /^HTTP\/1\.1 101 /);
  const open = await proxy.memory();
  const until_ms = performance.now() + 20_000;
  await until('they were idle for a while', () => performance.now() > until_ms, { every_ms: 1_000 });
  const after = await proxy.memory();
  assert.ok(opened.every(({ socket }) => !socket.destroyed));
  t.diagnostic(`${length} open, MiB: ${JSON.stringify({ before, open, after })}`);
  // Each has two connections, with their buffers and parsers.
  const each_kib = ((after.resident - before.resident) * 1_024) / opened.length;
  t.diagnostic(`${each_kib.toFixed(1)} KiB for each`);
  assert.ok(each_kib < 40);
  assert.ok(after.resident < open.resident + 16 && after.live < open.live + 4);
});
