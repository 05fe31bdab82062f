import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect as connectTcp, createServer } from 'node:net';
import { test } from 'node:test';
import { connect, createServer as createTlsServer } from 'node:tls';
import fc from 'fast-check';
import {
  asksForRetry,
  type Hello,
  readClientHello,
  readRetriedHello,
} from '../../src/egress-proxy/client-hello.ts';
import { serverCertificate } from '../support/test-certificates.ts';
import { extension, hello, inRecords, serverName } from '../support/tls-hello.ts';

/** What OpenSSL sends first. */
async function helloOf(servername: string): Promise<Buffer> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', servername });
  client.on('error', () => {});
  const [socket] = await once(server, 'connection');
  const [bytes] = await once(socket, 'data');
  client.destroy();
  socket.destroy();
  server.close();
  return bytes;
}

const nameOf = (answer: Hello) => (typeof answer === 'string' ? answer : answer.name);

test('the name of a real client is read, and at no earlier byte', async () => {
  const bytes = await helloOf('www.Example.com');
  assert.deepEqual(readClientHello(bytes), { name: 'www.example.com', protocols: [], bytes: bytes.length });
  for (let cut = 0; cut < bytes.length; cut++) assert.equal(readClientHello(bytes.subarray(0, cut)), 'more');
});

test('the name is read from a message that is cut into records of any size', async () => {
  const whole = await helloOf('a.example.com');
  const message = whole.subarray(5);
  for (const size of [Math.ceil(message.length / 64), 100, 300, 1_000]) {
    const bytes = inRecords(message, size);
    assert.deepEqual(
      readClientHello(bytes),
      { name: 'a.example.com', protocols: [], bytes: bytes.length },
      String(size),
    );
    assert.equal(readClientHello(bytes.subarray(0, bytes.length - 1)), 'more');
  }
});

test('early data after the message does not matter', () => {
  const bytes = Buffer.concat([
    inRecords(hello([serverName('a.com')])),
    Buffer.from([20, 3, 3, 0, 1, 1, 23, 3, 3]),
  ]);
  assert.equal(nameOf(readClientHello(bytes)), 'a.com');
});

test('another message before the server has answered is refused', () => {
  const one = inRecords(hello([serverName('a.com')]));
  assert.equal(readClientHello(Buffer.concat([one, one])), 'not tls');
});

test('a second hello is read behind early data', () => {
  const early = Buffer.from([20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 2, 9, 9]);
  const bytes = Buffer.concat([early, inRecords(hello([serverName('a.com')]), 9)]);
  assert.equal(nameOf(readRetriedHello(bytes)), 'a.com');
  for (let cut = 0; cut < bytes.length; cut++) assert.equal(readRetriedHello(bytes.subarray(0, cut)), 'more');
  assert.equal(readRetriedHello(Buffer.concat([early, Buffer.from('evil')])), 'not tls');
  const endless = Buffer.concat(Array.from({ length: 10_000 }, () => early));
  assert.equal(readRetriedHello(endless), 'not tls');
});

test('only a HelloRetryRequest asks for another hello', async () => {
  const answers = { 'P-384': true, 'X25519:P-384': false };
  for (const [ecdhCurve, retry] of Object.entries(answers)) {
    const said = await answerOf(ecdhCurve);
    assert.equal(asksForRetry(said), retry, ecdhCurve);
    assert.equal(asksForRetry(said.subarray(0, 40)), 'more');
  }
  assert.equal(asksForRetry(Buffer.from([21, 3, 3, 0, 2, 2, 40])), false);
});

/** What a server says first to a client that has sent a key of X25519. */
async function answerOf(ecdhCurve: string): Promise<Buffer> {
  const server = createTlsServer({ ecdhCurve, ...(await serverCertificate('a.com', null)) }).listen(
    0,
    '127.0.0.1',
  );
  server.on('tlsClientError', () => undefined);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const relay = createServer((socket) => {
    const to = connectTcp(port, '127.0.0.1');
    to.once('data', (bytes: Buffer) => relay.emit('said', bytes));
    for (const each of [socket, to])
      each.on('error', () => undefined).on('close', () => [socket, to].map((one) => one.destroy()));
    socket.pipe(to).pipe(socket);
  }).listen(0, '127.0.0.1');
  await once(relay, 'listening');
  const said = once(relay, 'said');
  const options = { ecdhCurve: 'X25519:P-384', rejectUnauthorized: false };
  const client = connect({ ...options, port: (relay.address() as AddressInfo).port, host: '127.0.0.1' });
  client.on('error', () => undefined);
  const [bytes] = await said;
  client.destroy();
  relay.close();
  server.close();
  return bytes as Buffer;
}

test('what two readers could understand differently is no hello', () => {
  const name = serverName('allowed.com');
  const cases: Record<string, Buffer> = {
    'two extensions': hello([name, serverName('evil.com')]),
    'two names': hello([serverName('allowed.com', 'evil.com')]),
    'bytes behind the extensions': hello([name], Buffer.from([0])),
    'a list shorter than its extension': hello([extension(0, Buffer.from([0, 0, 9]))]),
  };
  for (const [what, message] of Object.entries(cases)) {
    assert.equal(readClientHello(inRecords(message)), 'not tls', what);
  }
});

test('a hello without a host name has no name', () => {
  const none = [
    '203.0.113.7',
    'allowed.com.',
    'allowed.com\u0000.evil.com',
    'a b.com',
    '',
    'allowed.com:443',
    'évil.com',
  ];
  for (const name of none) {
    assert.equal(nameOf(readClientHello(inRecords(hello([serverName(name)])))), null, name);
  }
  assert.equal(nameOf(readClientHello(inRecords(hello([])))), null);
});

test('other protocols are recognised by their first bytes', () => {
  const others = [
    'SSH-2.0-OpenSSH_9.2\r\n',
    'GET / HTTP/1.1\r\nHost: allowed.com\r\n\r\n',
    '\u0000',
    'CONNECT a:443',
  ];
  for (const text of others) assert.equal(readClientHello(Buffer.from(text, 'latin1')), 'not tls', text);
  const v2 = Buffer.from([0x80, 0x2e, 1, 3, 1]);
  assert.equal(readClientHello(v2), 'not tls');
  assert.equal(readClientHello(Buffer.from([22, 3, 1, 0, 0])), 'not tls', 'an empty record');
  assert.equal(
    readClientHello(Buffer.from([22, 3, 1, 0, 4, 2, 0, 0, 1])),
    'not tls',
    'another handshake message',
  );
});

test('a message that never ends is refused', () => {
  const endless = inRecords(Buffer.concat([Buffer.from([1, 0, 0x7f, 0xff]), Buffer.alloc(80_000)]), 1);
  assert.equal(nameOf(readClientHello(endless.subarray(0, 100_000))), 'not tls');
  assert.equal(readClientHello(inRecords(Buffer.from([1, 1, 0, 0]))), 'not tls');
});

test('any bytes have an answer', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), fc.boolean(), (bytes, in_record) => {
      const content = Buffer.from(bytes);
      readClientHello(
        in_record
          ? inRecords(Buffer.concat([Buffer.from([1, 0, 0, content.length & 0xff]), content]))
          : content,
      );
    }),
    { numRuns: 2_000 },
  );
});

test('many small records are refused: each segment would cost the reading of all', async () => {
  const message = (await helloOf('a.example.com')).subarray(5);
  assert.equal(readClientHello(inRecords(message, 1)), 'not tls');
});
