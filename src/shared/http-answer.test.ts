import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, constants, createServer, type ServerHttp2Stream } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { acceptanceOf, answerOf, interimOf, trailersOf } from './http-answer.ts';
import { asRecord } from './http-request.ts';

const answer = (statusCode: number, rawHeaders: readonly string[] = [], statusMessage = 'OK') =>
  answerOf({ statusCode, statusMessage, rawHeaders }, 'GET');
const fieldsOf = (...raw: string[]) => {
  const ours = answer(200, raw);
  return 'problem' in ours ? assert.fail(ours.problem) : ours.fields;
};

test('a final status is 200 to 599', () => {
  for (const status of [200, 204, 304, 404, 599]) assert.ok('status' in answer(status), String(status));
  for (const status of [0, 99, 100, 101, 103, 199, 600, 999, 200.5, Number.NaN])
    assert.ok('problem' in answer(status), String(status));
});

test('lengths and codings that contradict each other make an answer unusable', () => {
  const cases: readonly (readonly string[])[] = [
    ['Content-Length', '1', 'content-length', '2'],
    ['Content-Length', '1', 'content-length', '1'],
    ['Content-Length', '1, 1'],
    ['Content-Length', '-1'],
    ['Content-Length', '1', 'Transfer-Encoding', 'chunked'],
    ['Transfer-Encoding', 'gzip, chunked'],
    ['Transfer-Encoding', 'chunked', 'Transfer-Encoding', 'identity'],
  ];
  for (const raw of cases) assert.ok('problem' in answer(200, raw), raw.join());
  assert.deepEqual(fieldsOf('Transfer-Encoding', 'Chunked'), []);
});

test('of fields that may stand once the first stays; lists and cookies may repeat', () => {
  assert.deepEqual(
    fieldsOf('ETag', '1', 'etag', '2', 'Set-Cookie', 'a=1', 'Set-Cookie', 'b=2', 'Vary', 'a', 'Vary', 'b'),
    [...['ETag', '1', 'Set-Cookie', 'a=1', 'Set-Cookie', 'b=2', 'Vary', 'a', 'Vary', 'b']],
  );
  assert.deepEqual(fieldsOf('Content-Encoding', 'gzip', 'X', '1', 'content-encoding', 'br'), [
    ...['Content-Encoding', 'gzip, br', 'X', '1'],
  ]);
});

test('fields of one connection, and names and values that no sender may write, are removed', () => {
  const removed = [
    ...[
      'Connection',
      'X-Named, close',
      'X-Named',
      'a',
      'Keep-Alive',
      '5',
      'Upgrade',
      'h2c',
      'TE',
      'trailers',
    ],
    ...[
      'HTTP2-Settings',
      'AAMAAABk',
      'Proxy-Authenticate',
      'Basic',
      'Proxy-Connection',
      'close',
      'Trailer',
      'X',
    ],
    ...[
      ':status',
      '200',
      'x y',
      'a',
      '',
      'a',
      'x\0',
      'a',
      'X',
      'a\r\nb',
      'X',
      'a\0',
      'X',
      'a\x7f',
      'X',
      '\u0100',
    ],
  ];
  assert.deepEqual(fieldsOf(...removed, 'X', ' \tb\xa0 '), ['X', 'b\xa0']);
  assert.deepEqual(fieldsOf('Connection', 'content-length', 'Content-Length', '2'), ['Content-Length', '2']);
});

test('the text of a status has no characters that no sender may write', () => {
  for (const [text, ours] of [
    ['OK', 'OK'],
    ['O\x01K', ''],
    ['\u0100', ''],
  ]) {
    const made = answer(200, [], text);
    assert.equal('reason' in made && made.reason, ours);
  }
});

test('answers without a body say so, and those that may have none have no length', () => {
  for (const [method, status, has_body, length] of [
    ['GET', 200, true, true],
    ['HEAD', 200, false, true],
    ['GET', 304, false, true],
    ['GET', 204, false, false],
    ['GET', 205, false, false],
  ] as const) {
    const ours = answerOf({ statusCode: status, rawHeaders: ['Content-Length', '5'] }, method);
    assert.ok('fields' in ours);
    assert.deepEqual([ours.has_body, ours.fields.length > 0], [has_body, length], `${method} ${status}`);
  }
});

test('interim answers pass cleaned: 101 never, and 100 to those who asked for it', () => {
  const interim = (statusCode: number, expects_continue = false) =>
    interimOf(
      { statusCode, rawHeaders: ['Link', 'a', 'http2-settings', 'x', 'Content-Length', '5'] },
      { expects_continue },
    );
  assert.deepEqual(interim(103), { status: 103, fields: ['Link', 'a'] });
  assert.deepEqual(interim(100, true), { status: 100, fields: [] });
  for (const status of [0, 99, 100, 101, 200, 600, Number.NaN]) assert.equal(interim(status), null);
});

test('an upgrade is accepted by 101 for a protocol that was asked for, and nothing else', () => {
  const accepted = ['Connection', 'Upgrade', 'Upgrade', 'WebSocket', 'Sec-WebSocket-Accept', 'x'];
  const head = { statusCode: 101, statusMessage: 'S', rawHeaders: [...accepted, 'Content-Length', '5'] };
  const ours = { protocol: 'websocket', status: 101, reason: 'S', fields: ['Sec-WebSocket-Accept', 'x'] };
  assert.deepEqual(acceptanceOf(head, ['other', 'websocket']), ours);
  assert.ok('problem' in acceptanceOf(head, ['h2c']));
  assert.ok('problem' in acceptanceOf({ ...head, statusCode: 200 }, ['websocket']));
  for (const upgrade of ['h2c', 'websocket, h2c', ''])
    assert.ok(
      'problem' in acceptanceOf({ statusCode: 101, rawHeaders: ['Upgrade', upgrade] }, ['websocket']),
      upgrade,
    );
});

test('trailers carry nothing that says how to read, whom to trust or whom to let in', () => {
  const raw = [
    'X-Sum',
    '1',
    'Content-Type',
    'a',
    'Set-Cookie',
    'a=1',
    'ETag',
    '1',
    'ETag',
    '2',
    'HTTP2-Settings',
    'x',
  ];
  assert.deepEqual(trailersOf(raw), ['X-Sum', '1', 'ETag', '1']);
});

test('a name that all objects have as a property is just a name', () => {
  const record = asRecord(['__proto__', 'a', '__proto__', 'b', 'constructor', 'c']);
  assert.deepEqual(Object.entries(record), [
    ['__proto__', ['a', 'b']],
    ['constructor', 'c'],
  ]);
});

test("Node's HTTP/2 sends every field that it knows, given twice, in heads, interim answers and trailers", async (t) => {
  const names = Object.entries(constants)
    .filter(([key]) => key.startsWith('HTTP2_HEADER_'))
    .map(([, name]) => String(name));
  assert.ok(names.length > 80);
  const server = createServer();
  const failed: unknown[] = [];
  server.on('stream', (stream: ServerHttp2Stream, { ':path': path }) => {
    const name = names[Number(String(path).slice(1))] ?? '';
    const raw = [name, '1', name, '2'];
    const ours = answerOf({ statusCode: 200, rawHeaders: raw }, 'GET');
    const interim = interimOf({ statusCode: 103, rawHeaders: raw }, { expects_continue: false });
    try {
      stream.additionalHeaders({ ...asRecord(interim?.fields ?? []), ':status': 103 });
      stream.respond(
        { ...asRecord('fields' in ours ? ours.fields : []), ':status': 200 },
        { waitForTrailers: true },
      );
    } catch (error) {
      failed.push(name, error);
    }
    stream.once('wantTrailers', () => {
      try {
        stream.sendTrailers(asRecord(trailersOf(raw)));
      } catch (error) {
        failed.push(name, error);
      }
    });
    stream.end();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  t.after(() => {
    client.destroy();
    server.close();
  });
  for (const at of names.keys()) {
    const stream = client.request({ ':path': `/${at}` });
    stream.resume();
    await once(stream, 'close');
  }
  assert.deepEqual(failed, []);
});
