/** Bytes that a hostile client or guest sends to the proxy of HTTP ports, each with its answer. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect as connectHttp2 } from 'node:http2';
import { connect } from 'node:net';
import { test } from 'node:test';
import { http2Frame, literalField } from '../support/hostile-answers.ts';
import { guestServer, NAME, proxyTo, rawGuest, sendRaw } from '../support/http-ingress.ts';
import { HOST } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

const H = `Host: ${NAME}\r\n`;
const END = 'Connection: close\r\n\r\n';
/** What follows a request that a careless proxy ends too early. */
const SMUGGLED = `GET /smuggled HTTP/1.1\r\n${H}\r\n`;

/** Refused before a byte reaches a guest. */
const REFUSED: Record<string, string> = {
  'a length and chunks': `POST / HTTP/1.1\r\n${H}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${SMUGGLED}`,
  'chunks and a length': `POST / HTTP/1.1\r\n${H}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n${SMUGGLED}`,
  'two lengths': `POST / HTTP/1.1\r\n${H}Content-Length: 0\r\nContent-Length: 50\r\n\r\n${SMUGGLED}`,
  'two equal lengths': `POST / HTTP/1.1\r\n${H}Content-Length: 2\r\nContent-Length: 2\r\n\r\nab`,
  'a list of lengths': `POST / HTTP/1.1\r\n${H}Content-Length: 2, 2\r\n\r\nab`,
  'a length with a sign': `POST / HTTP/1.1\r\n${H}Content-Length: +2\r\n\r\nab`,
  'a negative length': `POST / HTTP/1.1\r\n${H}Content-Length: -2\r\n\r\nab`,
  'a length in hexadecimal': `POST / HTTP/1.1\r\n${H}Content-Length: 0x2\r\n\r\nab`,
  'a length beyond all numbers': `POST / HTTP/1.1\r\n${H}Content-Length: 99999999999999999999\r\n\r\n`,
  'another coding before chunks': `POST / HTTP/1.1\r\n${H}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`,
  'chunks twice': `POST / HTTP/1.1\r\n${H}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n`,
  'chunks, then identity': `POST / HTTP/1.1\r\n${H}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n`,
  'a coding that looks like chunks': `POST / HTTP/1.1\r\n${H}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n`,
  'a coding behind a control character': `POST / HTTP/1.1\r\n${H}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n`,
  'a quoted coding': `POST / HTTP/1.1\r\n${H}Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n`,
  'chunks in HTTP/1.0': `POST / HTTP/1.0\r\n${H}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
  'a space before the colon of a coding': `POST / HTTP/1.1\r\n${H}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n`,
  'a folded field': `GET / HTTP/1.1\r\n${H}X: a\r\n b\r\n${END}`,
  'a folded coding': `POST / HTTP/1.1\r\n${H}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n`,
  'a folded first field': `GET / HTTP/1.1\r\n Host: ${NAME}\r\n\r\n`,
  'two Hosts': `GET / HTTP/1.1\r\n${H}Host: other.localhost\r\n${END}`,
  'two equal Hosts': `GET / HTTP/1.1\r\n${H}${H}${END}`,
  'no Host': `GET / HTTP/1.1\r\n${END}`,
  'no Host in HTTP/1.0': `GET / HTTP/1.0\r\n${END}`,
  'an empty Host': `GET / HTTP/1.1\r\nHost:\r\n${END}`,
  'a Host with a user': `GET / HTTP/1.1\r\nHost: a@${NAME}\r\n${END}`,
  'a Host with a path': `GET / HTTP/1.1\r\nHost: ${NAME}/x\r\n${END}`,
  'a list of Hosts': `GET / HTTP/1.1\r\nHost: ${NAME}, other\r\n${END}`,
  'a space before the colon of Host': `GET / HTTP/1.1\r\nHost : ${NAME}\r\n${END}`,
  'a target of another host': `GET http://other.localhost/ HTTP/1.1\r\n${H}${END}`,
  'a target with a user': `GET http://u@${NAME}/ HTTP/1.1\r\n${H}${END}`,
  'a target of another scheme': `GET ftp://${NAME}/ HTTP/1.1\r\n${H}${END}`,
  'a target without a slash': `GET x HTTP/1.1\r\n${H}${END}`,
  'a target that is a star': `GET * HTTP/1.1\r\n${H}${END}`,
  'a target with a fragment': `GET /#a HTTP/1.1\r\n${H}${END}`,
  'a target with a control character': `GET /\x01 HTTP/1.1\r\n${H}${END}`,
  'a target beyond ASCII': `GET /\xe9 HTTP/1.1\r\n${H}${END}`,
  'a bare line feed': `GET / HTTP/1.1\nHost: ${NAME}\n\n`,
  'a bare line feed in a field': `GET / HTTP/1.1\r\nHost: ${NAME}\nX: y\r\n\r\n`,
  'a bare carriage return': `GET / HTTP/1.1\r\nHost: ${NAME}\rX: y\r\n\r\n`,
  'a zero byte in a value': `GET / HTTP/1.1\r\n${H}X: a\0b\r\n${END}`,
  'a zero byte in a name': `GET / HTTP/1.1\r\n${H}X\0: a\r\n${END}`,
  'an empty name': `GET / HTTP/1.1\r\n${H}: a\r\n${END}`,
  'a field without a colon': `GET / HTTP/1.1\r\n${H}foo\r\n${END}`,
  'another version': `GET / HTTP/1.2\r\n${H}${END}`,
  'the version of HTTP/2': `GET / HTTP/2.0\r\n${H}${END}`,
  'a method that none has': `FOO / HTTP/1.1\r\n${H}${END}`,
  'a Connection that names Host': `GET / HTTP/1.1\r\n${H}Connection: close, host\r\n\r\n`,
  'a Connection that names Content-Length': `POST / HTTP/1.1\r\n${H}Content-Length: 1\r\nConnection: content-length, close\r\n\r\na`,
  'an upgrade with a body': `GET / HTTP/1.1\r\n${H}Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 60\r\n\r\n${SMUGGLED}`,
  'an upgrade that is no GET': `POST / HTTP/1.1\r\n${H}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n`,
  'fields beyond the limit': `GET / HTTP/1.1\r\n${H}X: ${'a'.repeat(40_000)}\r\n${END}`,
  CONNECT: `CONNECT ${NAME}:80 HTTP/1.1\r\n${H}\r\n`,
  nonsense: '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
  'the preface of HTTP/2, and no HTTP/2': 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET / HTTP/1.1\r\n\r\n',
};

test('a request that can be read in two ways is refused, and not a byte of it reaches a guest', async (t) => {
  const reached: string[] = [];
  const address = await rawGuest(t, (socket, heard) => {
    reached.push(heard);
    socket.end('HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached');
  });
  const { port } = await proxyTo(t, { address: () => address });
  for (const [what, bytes] of Object.entries(REFUSED)) {
    const heard = await sendRaw(port, bytes, (all) => /\r\n\r\n/.test(all));
    assert.deepEqual(reached.splice(0), [], what);
    if (!/nonsense|HTTP\/2,/.test(what))
      assert.match(heard, /^HTTP\/1\.1 (400|405|431) /, `${what}: ${heard}`);
  }
});

/** Chunks that end too early or late: the request was begun, and the guest sees it cut off, never another request. */
const CUT_OFF: Record<string, string> = {
  'a chunk with a line feed alone': '1\nx\n0\n\n',
  'a chunk extension with a line feed': '1;a\nx\r\n0\r\n\r\n',
  'a negative chunk': '-1\r\nx\r\n0\r\n\r\n',
  'a chunk with a prefix': '0x1\r\nx\r\n0\r\n\r\n',
  'a chunk beyond all numbers': 'ffffffffffffffffff\r\nx\r\n',
  'a chunk longer than it says': `1\r\nxy\r\n0\r\n\r\n${SMUGGLED}`,
};

test('damaged chunks reach a guest as a cut-off body, and what follows them not at all', async (t) => {
  let smuggled = 0;
  let whole = 0;
  const address = await guestServer(t, (request, response) => {
    if (request.url === '/smuggled') smuggled += 1;
    request
      .on('error', () => undefined)
      .on('end', () => {
        whole += 1;
        response.end();
      });
    request.resume();
  });
  const { port } = await proxyTo(t, { address: () => address });
  for (const [what, body] of Object.entries(CUT_OFF)) {
    await sendRaw(port, `POST / HTTP/1.1\r\n${H}Transfer-Encoding: chunked\r\n\r\n${body}`, (all) =>
      /\r\n\r\n/.test(all),
    );
    assert.deepEqual([smuggled, whole], [0, 0], what);
  }
});

test('a pipelined request is answered in order, and goes to the port of its own Host', async (t) => {
  const address = await guestServer(t, (request, response) => response.end(request.url));
  const { port } = await proxyTo(t, { address: () => address });
  const heard = await sendRaw(
    port,
    `GET /1 HTTP/1.1\r\n${H}\r\nGET /2 HTTP/1.1\r\nHost: other.localhost\r\n\r\nGET /3 HTTP/1.1\r\n${H}${END}`,
  );
  const statuses = [...heard.matchAll(/HTTP\/1\.1 (\d+)/g)].map((each) => each[1]);
  assert.deepEqual(statuses, ['200', '404', '200']);
});

test('HTTP/2: a stream with fields of HTTP/1, another Host, or a plain CONNECT is refused', async (t) => {
  let reached = 0;
  const address = await guestServer(t, (_request, response) => {
    reached += 1;
    response.end();
  });
  const { origin } = await proxyTo(t, { address: () => address });
  const cases: Record<string, Record<string, string>> = {
    'another Host': { ':path': '/', ':authority': NAME, host: 'other.localhost' },
    'no host at all': { ':path': '/', ':authority': '' },
    'a target without a slash': { ':path': 'x', ':authority': NAME },
    'a fragment': { ':path': '/#x', ':authority': NAME },
    CONNECT: { ':method': 'CONNECT', ':authority': `${NAME}:80` },
    'an unknown protocol': {
      ':method': 'CONNECT',
      ':protocol': 'connect-udp',
      ':scheme': 'http',
      ':path': '/',
      ':authority': NAME,
    },
  };
  for (const [what, headers] of Object.entries(cases)) {
    const session = connectHttp2(origin);
    session.on('error', () => undefined);
    await once(session, 'remoteSettings');
    const stream = session.request(headers, { endStream: true });
    const outcome = await Promise.race([
      once(stream, 'response').then(([answer]) => answer[':status'] as number),
      once(stream, 'close').then(() => 0),
    ]).catch(() => 0);
    assert.ok([0, 400, 404, 405].includes(outcome), `${what}: ${outcome}`);
    session.destroy();
  }
  assert.equal(reached, 0);
});

test('HTTP/2: fields of one connection end the stream, and a field with a line break is dropped', async (t) => {
  const reached: string[] = [];
  const address = await guestServer(t, (request, response) => {
    reached.push(request.rawHeaders.join('\n'));
    response.end();
  });
  const { port } = await proxyTo(t, { address: () => address });
  for (const [name, value, dropped] of [
    ['transfer-encoding', 'chunked'],
    ['connection', 'close'],
    ['keep-alive', '1'],
    ['upgrade', 'websocket'],
    ['x-a', 'b\r\nhost: evil', true],
    ['x-a', 'b\nx: y', true],
    ['X-Upper', 'a'],
    ['content-length', '5'],
    [':path', '/second'],
  ] as const) {
    const fields = Buffer.concat([
      ...[literalField(':method', 'GET'), literalField(':scheme', 'http'), literalField(':path', '/')],
      ...[literalField(':authority', NAME), literalField(name, value)],
    ]);
    const socket = connect(port, HOST);
    socket.on('error', () => undefined);
    socket.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
    socket.write(Buffer.concat([http2Frame(4, 0, 0, Buffer.alloc(0)), http2Frame(1, 0x5, 1, fields)]));
    let heard = Buffer.alloc(0);
    socket.on('data', (data: Buffer) => {
      heard = Buffer.concat([heard, data]);
    });
    // RST_STREAM or GOAWAY, or the end of the connection.
    await until(
      `${name} is refused`,
      () => socket.destroyed || frameTypes(heard).some((type) => [dropped ? 1 : 3, 7].includes(type)),
    );
    socket.destroy();
    assert.deepEqual(
      reached.splice(0).map((each) => /evil|x-a|x: y/i.test(each)),
      dropped ? [false] : [],
      name,
    );
  }
});

function frameTypes(data: Buffer): number[] {
  const types: number[] = [];
  for (let at = 0; at + 9 <= data.length; at += 9 + data.readUIntBE(at, 3)) types.push(data[at + 3] ?? 0);
  return types;
}

test('a client that is slow with its headers is disconnected, and one that is slow with its body is not', async (t) => {
  const address = await guestServer(t, async (request, response) => {
    response.end(Buffer.concat(await request.toArray()));
  });
  const { port } = await proxyTo(t, { address: () => address }, { limits: { headers_ms: 300 } });
  const slow = connect(port, HOST);
  slow.on('error', () => undefined);
  slow.write(`GET / HTTP/1.1\r\n${H}`);
  slow.resume();
  const body = connect(port, HOST);
  body.write(`POST / HTTP/1.1\r\n${H}Content-Length: 4\r\n${END}`);
  body.write('ab');
  await once(slow, 'close');
  body.write('cd');
  const parts = await body.toArray();
  assert.match(String(Buffer.concat(parts)), /200 OK[\s\S]*abcd$/);
});

test('beyond the limit an idle connection of the busiest source gives way to a new one', async (t) => {
  const address = await guestServer(t, (_request, response) => response.end('here'));
  const { port } = await proxyTo(t, { address: () => address }, { limits: { connections: 5 } });
  const idle = Array.from({ length: 5 }, () => connect(port, HOST).on('error', () => undefined));
  await Promise.all(idle.map((each) => once(each, 'connect')));
  const heard = await sendRaw(port, `GET / HTTP/1.1\r\n${H}${END}`);
  assert.match(heard, /here$/);
  for (const each of idle) each.destroy();
});

test('a guest that never ends its response, and a client that does not read, cost bounded memory and nobody else', async (t) => {
  const chunk = Buffer.alloc(64 * 1024);
  let sent = 0;
  const address = await guestServer(t, (request, response) => {
    if (request.url !== '/endless') return void response.end('quick');
    const pump = () => {
      while (!response.destroyed) {
        sent += chunk.length;
        if (!response.write(chunk)) return void response.once('drain', pump);
      }
    };
    pump();
  });
  const { port } = await proxyTo(t, { address: () => address });
  const stuck = Array.from({ length: 20 }, () => {
    const socket = connect(port, HOST);
    socket.write(`GET /endless HTTP/1.1\r\n${H}\r\n`);
    return socket.pause();
  });
  let before = -1;
  await until(
    'the guest is held back',
    () => {
      const still = sent === before && sent > 0;
      before = sent;
      return still;
    },
    { every_ms: 300 },
  );
  assert.ok(sent < 20 * 16 * 1024 * 1024, `${sent} bytes are under way`);
  const began_ms = performance.now();
  assert.match(await sendRaw(port, `GET / HTTP/1.1\r\n${H}${END}`), /quick$/);
  assert.ok(performance.now() - began_ms < 2_000);
  for (const each of stuck) each.destroy();
});

test('a response whose fields cannot be read in one way is a bad gateway', async (t) => {
  const cases: Record<string, string> = {
    'a length and chunks':
      'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    'two lengths': 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab',
    'a bare carriage return': 'HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\n\r\n',
    'a zero byte': 'HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n',
    'a status beyond three digits': 'HTTP/1.1 2000 OK\r\n\r\n',
    'fields beyond the limit': `HTTP/1.1 200 OK\r\nX: ${'a'.repeat(100_000)}\r\n\r\n`,
    'an upgrade that nobody asked for':
      'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n',
  };
  for (const [what, said] of Object.entries(cases)) {
    const address = await rawGuest(t, (socket) => socket.end(said));
    const { port } = await proxyTo(t, { address: () => address });
    const heard = await sendRaw(port, `GET / HTTP/1.1\r\n${H}${END}`);
    assert.match(heard, /^HTTP\/1\.1 502 /, `${what}: ${heard.slice(0, 200)}`);
  }
});
