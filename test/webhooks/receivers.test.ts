/** Receivers that hang, dribble, redirect, answer too much or nonsense, or have a wrong certificate. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import tls from 'node:tls';
import { Outbound } from '../../src/control-plane/webhooks/outbound.ts';
import { ownPort } from '../support/own-ports.ts';
import { type ReceiverOptions, startReceiver } from '../support/receivers.ts';

const allow_cidrs = [{ address: '127.0.0.1', prefix: 32 }] as const;
const outbound = new Outbound({ allow_cidrs, timeout_ms: 120_000 });
const impatient = new Outbound({ allow_cidrs, timeout_ms: 400 });
/** Long enough for an answer to begin on a busy machine. */
const fairly_patient = new Outbound({ allow_cidrs, timeout_ms: 4_000 });
const folder = mkdtempSync(join(tmpdir(), 'berth-receivers-'));
after(async () => {
  await Promise.all([outbound, impatient, fairly_patient].map((each) => each.close()));
  rmSync(folder, { recursive: true });
});

/** The answer of such a receiver to one request. */
async function answerOf(answer: RequestListener, options: ReceiverOptions = {}, sender = outbound) {
  const receiver = await startReceiver(answer, options);
  try {
    return await sender.post(`${receiver.origin}/hook`, {}, '{}');
  } finally {
    await receiver.close();
  }
}

test('a redirect is an answer and is not followed, wherever it leads', async () => {
  for (const status of [301, 302, 303, 307, 308]) {
    const victim = await startReceiver((_, response) => response.end('inside'));
    const answer = await answerOf((_, response) =>
      response.writeHead(status, { location: `${victim.origin}/` }).end('elsewhere'),
    );
    assert.equal(answer.status, status);
    assert.equal(answer.response, 'elsewhere');
    assert.equal(victim.connections(), 0);
    await victim.close();
  }
});

test('a receiver that never answers ends at the timeout', async () => {
  const { promise: ended, resolve } = Promise.withResolvers<void>();
  const receiver = await startReceiver((request) => request.socket.on('close', () => resolve()));
  const answer = await impatient.post(receiver.origin, {}, '{}');
  assert.equal(answer.status, null);
  assert.equal(answer.error, 'no answer within 0.4 s');
  await ended;
  await receiver.close();
});

test('a receiver that takes the connection and reads nothing ends at the timeout', async () => {
  const sockets: Socket[] = [];
  const server = createServer((socket) => sockets.push(socket.pause()));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  const answer = await impatient.post(`http://127.0.0.1:${port}/`, {}, 'x'.repeat(20_000_000));
  assert.equal(answer.error, 'no answer within 0.4 s');
  for (const socket of sockets) socket.destroy();
  server.close();
});

test('a receiver that sends its body a byte at a time ends at the timeout, and the beginning is kept', async () => {
  const dribble: RequestListener = (_, response) => {
    response.writeHead(200);
    const timer = setInterval(() => response.write('x'), 20);
    response.on('close', () => clearInterval(timer));
  };
  const answer = await answerOf(dribble, {}, fairly_patient);
  assert.equal(answer.status, null, 'an answer without an end is none');
  assert.equal(answer.error, 'the answer did not end within 4 s');
  assert.match(answer.response, /^x+$/);
});

test('a receiver that sends its headers a byte at a time ends at the timeout', async () => {
  const dribble: RequestListener = (_, response) => {
    const socket = response.socket;
    const text = 'HTTP/1.1 200 OK\r\nx-slow: '.split('');
    const timer = setInterval(() => socket?.write(text.shift() ?? 'y'), 5);
    socket?.on('close', () => clearInterval(timer));
  };
  const answer = await answerOf(dribble, {}, impatient);
  assert.equal(answer.error, 'no answer within 0.4 s');
});

test('of a huge or endless body 4 KiB are kept, and it is cut off', async () => {
  const huge = await answerOf((_, response) => response.end('y'.repeat(10_000_000)));
  assert.equal(huge.status, 200);
  assert.equal(huge.response, 'y'.repeat(4096));
  let sent_bytes = 0;
  const chunk = 'z'.repeat(16_384);
  const endless = await answerOf((_, response) => {
    response.writeHead(503);
    const more = () => {
      sent_bytes += chunk.length;
      if (response.destroyed) return;
      if (response.write(chunk)) setImmediate(more);
      else response.once('drain', more);
    };
    more();
  });
  assert.equal(endless.status, 503);
  assert.equal(endless.response.length, 4096);
  assert.ok(sent_bytes < 50_000_000, `cut off after ${sent_bytes} bytes`);
});

test('a body that is not UTF-8 becomes text', async () => {
  const answer = await answerOf((_, response) =>
    response.end(Buffer.from([0x6f, 0x6b, 0, 0xff, 0xfe, 0x80])),
  );
  assert.equal(answer.response, 'ok\ufffd\ufffd\ufffd\ufffd');
});

test('Retry-After is read, as seconds and as a date', async () => {
  const seconds = await answerOf((_, response) => response.writeHead(429, { 'retry-after': '120' }).end());
  assert.equal(seconds.status, 429);
  assert.equal(seconds.retry_after_seconds, 120);
  const date = new Date(Date.now() + 3_600_000).toUTCString();
  const dated = await answerOf((_, response) => response.writeHead(503, { 'retry-after': date }).end());
  assert.ok(Math.abs((dated.retry_after_seconds ?? 0) - 3_600) < 60, String(dated.retry_after_seconds));
  assert.equal((await answerOf((_, response) => response.end())).retry_after_seconds, null);
});

test('a refused connection, one that breaks and an answer that is not HTTP have error texts', async () => {
  const nobody = await outbound.post(`http://127.0.0.1:${await ownPort()}/`, {}, '{}');
  assert.equal(nobody.error, 'the connection was refused');
  const broken = await answerOf((request) => request.socket.destroy());
  assert.equal(broken.error, 'the connection was closed before the answer');
  const half = await answerOf((_, response) => {
    response.writeHead(200, { 'content-length': '100' }).write('half');
    setImmediate(() => response.destroy());
  });
  assert.equal(half.status, null);
  assert.equal(half.error, 'the connection was closed before the answer');
  const nonsense = await answerOf((request) => request.socket.end('SSH-2.0-OpenSSH_9.2\r\n'));
  assert.equal(nonsense.error, 'the answer is not HTTP/1.1');
  const headers = await answerOf((_, response) => {
    response.writeHead(200, { 'x-large': 'h'.repeat(40_000) }).end();
  });
  assert.equal(headers.error, 'the headers of the answer are too large');
});

test('an abort ends its request at once, and a close ends all requests in flight', async () => {
  const receiver = await startReceiver(() => undefined);
  const patient = new Outbound({ allow_cidrs: [{ address: '127.0.0.1', prefix: 32 }] });
  const stop = new AbortController();
  const given_up = patient.post(receiver.origin, {}, '{}', stop.signal);
  const under_way = patient.post(receiver.origin, {}, '{}');
  stop.abort();
  assert.equal((await given_up).error, 'the request was given up');
  assert.equal(
    (await patient.post(receiver.origin, {}, '{}', stop.signal)).error,
    'the request was given up',
  );
  await patient.close();
  assert.equal((await under_way).error, 'the request was given up');
  assert.equal((await patient.post(receiver.origin, {}, '{}')).error, 'the request was given up');
  await receiver.close();
});

test('an abort gives up all requests of its signal but the answered ones', async (t) => {
  const receiver = await startReceiver((request, response) => {
    if (request.url?.startsWith('/now')) response.writeHead(204).end();
  });
  const sender = new Outbound({ allow_cidrs });
  t.after(() => sender.close());
  t.after(() => receiver.close());
  const stop = new AbortController();
  const post = (path: string) => sender.post(`${receiver.origin}${path}`, {}, '{}', stop.signal);
  // The first, some between and the last end before the others.
  const kinds = [...'nhnhhnnhn'].map((kind) => (kind === 'n' ? '/now' : '/held'));
  const answers = kinds.map(post);
  await Promise.all(answers.filter((_, index) => kinds[index] === '/now'));
  stop.abort();
  assert.deepEqual(
    (await Promise.all(answers)).map(({ status, error }) => status ?? error),
    kinds.map((kind) => (kind === '/now' ? 204 : 'the request was given up')),
  );
});

test('a hundred requests at once to one origin do not wait for each other', async () => {
  const waiting: (() => void)[] = [];
  const receiver = await startReceiver((_, response) => {
    waiting.push(() => response.end());
    if (waiting.length === 100) for (const answer of waiting) answer();
  });
  const patient = new Outbound({ allow_cidrs: [{ address: '127.0.0.1', prefix: 32 }] });
  const answers = await Promise.all(
    Array.from({ length: 100 }, () => patient.post(receiver.origin, {}, '{}')),
  );
  assert.ok(answers.every(({ status }) => status === 200));
  await patient.close();
  await receiver.close();
});

function certificate(subject_alt_name: string): { key: string; cert: string } {
  const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')];
  execFileSync(
    'openssl',
    [
      ...[
        'req',
        '-x509',
        '-newkey',
        'ec',
        '-pkeyopt',
        'ec_paramgen_curve:prime256v1',
        '-nodes',
        '-days',
        '2',
      ],
      ...[
        '-subj',
        '/CN=receiver',
        '-addext',
        `subjectAltName=${subject_alt_name}`,
        '-keyout',
        key,
        '-out',
        cert,
      ],
    ],
    { stdio: 'ignore' },
  );
  return { key: readFileSync(key, 'utf8'), cert: readFileSync(cert, 'utf8') };
}

test('a certificate that is self-signed or for another name is refused, a trusted one is accepted', async () => {
  const right = certificate('IP:127.0.0.1');
  const other = certificate('DNS:other.example');
  let asked = 0;
  const thank: RequestListener = (_, response) => {
    asked++;
    response.end('thanks');
  };
  assert.equal((await answerOf(thank, { tls: right })).error, 'TLS: the certificate is self-signed');
  tls.setDefaultCACertificates([right.cert, other.cert]);
  assert.equal((await answerOf(thank, { tls: other })).error, 'TLS: the certificate is for another name');
  assert.equal(asked, 0, 'nothing was sent to either');
  assert.equal((await answerOf(thank, { tls: right })).status, 200);
  const plain = await startReceiver(thank);
  const answer = await outbound.post(`https://127.0.0.1:${plain.port}/`, {}, '{}');
  assert.equal(answer.error, 'TLS: the handshake failed');
  await plain.close();
});
