/** HTTP through the egress proxy between a hostile guest and a hostile server: the proxy, which all VMs share, survives both. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { HttpHandler } from '../../src/egress-proxy/http-handler.ts';
import { NameResolver } from '../../src/egress-proxy/name-resolver.ts';
import { ProxiedGuest } from '../../src/egress-proxy/proxied-guest.ts';
import { Denials } from '../../src/protocol/denials.ts';

const NAME = 'allowed.test';

describe('HTTP through the proxy', { timeout: 60_000 }, () => {
  const received: Buffer[] = [];
  const sockets = new Set<Socket>();
  let answer: Buffer[] = [];
  let proxy: Server;
  let server: Server;
  let port: number;

  before(async () => {
    server = createServer((socket) => {
      sockets.add(socket);
      socket.on('error', () => undefined);
      socket.on('data', (bytes) => {
        received.push(bytes);
        // After the whole request, so that none is cut off.
        if (/\r\n\r\n$/.test(Buffer.concat(received).toString('latin1')))
          for (const part of answer) socket.write(part);
      });
    });
    port = await listening(server);
    const resolver = new NameResolver({ servers: [], isClosed: () => false });
    resolver.lookUp = async () => ({
      ...{ outcome: 'found', addresses: ['127.0.0.1'], ttl_seconds: 60, closed: [] },
    });
    const policy = { mode: 'allow', allow: [`${NAME}:${port}`] } as const;
    const guest = new ProxiedGuest(
      { address: '198.18.0.2', policy, secrets: [], authority: null },
      { resolver, denials: new Denials(() => undefined), admit: async () => undefined },
    );
    const way = new HttpHandler();
    proxy = createServer({ allowHalfOpen: true }, (socket) => {
      sockets.add(socket);
      socket.on('error', () => socket.destroy());
      way.pass(socket, guest, { address: '127.0.0.1', port });
    });
    await listening(proxy);
  });
  after(() => {
    for (const socket of sockets) socket.destroy();
    for (const each of [proxy, server]) each?.close();
  });

  async function listening(each: Server): Promise<number> {
    each.listen(0, '127.0.0.1');
    await once(each, 'listening');
    return (each.address() as AddressInfo).port;
  }

  /** Waits so long without a byte before it closes: short where none may come. */
  async function ask(bytes: string, answered: string, silent_ms = 300): Promise<string> {
    received.length = 0;
    answer = [Buffer.from(answered, 'latin1')];
    const socket: Socket = connect((proxy.address() as AddressInfo).port, '127.0.0.1');
    socket.on('error', () => undefined);
    socket.write(Buffer.from(bytes, 'latin1'));
    sockets.add(socket);
    socket.setTimeout(silent_ms, () => socket.destroy());
    return text(socket).catch(() => '');
  }

  const head = () => `Host: ${NAME}:${port}\r\n`;
  const OK = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK';
  const get = () => `GET / HTTP/1.1\r\n${head()}Connection: close\r\n\r\n`;

  test('trailers of a request and of its answer pass, without those that would change what was checked', async () => {
    const trailers = 'X-Sum: 1\r\nHost: evil.test\r\n';
    const request = `POST / HTTP/1.1\r\n${head()}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nbody\r\n0\r\n${trailers}\r\n`;
    const reply = `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nOK\r\n0\r\nX-Digest: 2\r\nContent-Type: text/evil\r\n\r\n`;
    const said = await ask(request, reply);
    const sent = Buffer.concat(received).toString('latin1');
    assert.match(sent, /4\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n$/);
    assert.match(said, /2\r\nOK\r\n0\r\nX-Digest: 2\r\n\r\n$/i);
  });

  const ANSWERS = {
    'a status text with a control character': 'HTTP/1.1 200 O\x01K\r\nContent-Length: 0\r\n\r\n',
    'a status text with other bytes': 'HTTP/1.1 200 \xc4\x80\r\nContent-Length: 0\r\n\r\n',
    'a status of 0': 'HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n',
    'a status below 100': 'HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n',
    'an upgrade that nobody asked for':
      'HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nbytes',
    'many informational answers': `${'HTTP/1.1 103 Early\r\nLink: x\r\n\r\n'.repeat(50)}${OK}`,
    'a header with a control character': 'HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 0\r\n\r\n',
    'a header with other bytes': 'HTTP/1.1 200 OK\r\nX: \xc4\x80\r\nContent-Length: 0\r\n\r\n',
    'a trailer that was announced beside a length':
      'HTTP/1.1 200 OK\r\nTrailer: X\r\nContent-Length: 0\r\n\r\n',
    'more than its length': 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nmany bytes',
    'two lengths': 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nOK',
    'a body without a length for status 204':
      'HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nOK\r\n0\r\n\r\n',
    'a trailer that is no header':
      'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: a\x01\r\n\r\n',
    nothing: '',
  };
  const REQUESTS = {
    'a URL with other bytes': () => `GET /\xc4\x80\xe2\x82\xac HTTP/1.1\r\n${head()}\r\n`,
    'a header with other bytes': () => `GET / HTTP/1.1\r\n${head()}X: \xc4\x80\r\n\r\n`,
    'a trailer that is announced beside a length': () =>
      `POST / HTTP/1.1\r\n${head()}Trailer: X\r\nContent-Length: 0\r\n\r\n`,
    'an upgrade with a body': () =>
      `POST / HTTP/1.1\r\n${head()}Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 4\r\n\r\nbody`,
    'an upgrade with a URL of other bytes': () =>
      `GET /\xc4\x80 HTTP/1.1\r\n${head()}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
    'an expectation that is unknown': () => `GET / HTTP/1.1\r\n${head()}Expect: evil\r\n\r\n`,
    'a trailer with other bytes': () =>
      `POST / HTTP/1.1\r\n${head()}Transfer-Encoding: chunked\r\n\r\n0\r\nX: \xc4\x80\r\n\r\n`,
    'an asterisk': () => `OPTIONS * HTTP/1.1\r\n${head()}\r\n`,
    'a length with a GET': () => `GET / HTTP/1.1\r\n${head()}Content-Length: 4\r\n\r\nbody`,
  };

  const survives = async () => assert.match(await ask(get(), OK, 5_000), /^HTTP\/1\.1 200 OK[\s\S]*OK$/);
  for (const [what, bytes] of Object.entries(ANSWERS)) {
    test(`survives a server that answers with ${what}`, async () => {
      const said = await ask(get(), bytes);
      assert.doesNotMatch(said, /many bytes/);
      await survives();
      await ask(`GET / HTTP/1.1\r\n${head()}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n`, bytes);
      await survives();
    });
  }
  for (const [what, request] of Object.entries(REQUESTS)) {
    test(`survives a guest that sends ${what}`, async () => {
      await ask(request(), OK);
      await survives();
    });
  }
});
