import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { Agent, createServer, get, type IncomingMessage } from 'node:http';
import { type AddressInfo, connect, createServer as createTcp } from 'node:net';
import { PassThrough } from 'node:stream';
import { beforeEach, test } from 'node:test';
import { contain, reportThrows } from './contain.ts';

const thrown: string[] = [];
reportThrows((error) => thrown.push(String(error)));
beforeEach(() => {
  thrown.length = 0;
});

test('a throw in a handler of a stream ends that stream, and is reported once', async () => {
  const stream = contain(new PassThrough());
  const other = new PassThrough();
  stream.on('data', () => {
    throw new Error('a fault');
  });
  const closed = new Promise((resolve) => stream.once('close', resolve));
  stream.write('x');
  await closed;
  assert.deepEqual(thrown, ['Error: a fault']);
  assert.equal(other.destroyed, false);
});

test('an error that nobody handles ends the stream that has it, and a throw at an emitter without an end only is reported', () => {
  const stream = contain(new PassThrough());
  stream.emit('error', new Error('reset'));
  assert.equal(stream.destroyed, true);
  const emitter = contain(new EventEmitter());
  emitter.on('x', () => assert.fail('here'));
  assert.equal(emitter.emit('x'), true);
  assert.deepEqual(thrown, ['Error: reset', 'AssertionError [ERR_ASSERTION]: here']);
});

test("a throw in a handler of a server's request or of its body ends that connection; others stay open", async (t) => {
  const server = contain(createServer());
  server.on('request', (request, response) => {
    if (request.url === '/request') throw new Error('request');
    if (request.url === '/body') {
      request.on('data', () => {
        throw new Error('body');
      });
      return;
    }
    response.end('fine');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  t.after(() => agent.destroy());
  const ask = async () => {
    const [answer] = (await once(get({ port, host: '127.0.0.1', agent }), 'response')) as [IncomingMessage];
    const { localPort } = answer.socket;
    assert.equal(Buffer.concat(await answer.toArray()).toString(), 'fine');
    return localPort;
  };
  const bystander = await ask();
  for (const path of ['request', 'body']) {
    const socket = connect(port, '127.0.0.1');
    socket.write(`POST /${path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx`);
    socket.resume();
    await once(socket, 'close');
  }
  assert.equal(await ask(), bystander);
  assert.deepEqual(thrown, ['Error: request', 'Error: body']);
});

test("a throw in a handler of a client's answer ends the request and the answer", async (t) => {
  const server = createTcp((socket) => {
    socket.on('error', () => undefined).write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const request = contain(get({ port: (server.address() as AddressInfo).port, host: '127.0.0.1' }));
  request.on('error', () => undefined);
  let answer: IncomingMessage | null = null;
  request.on('response', (each) => {
    answer = each;
    throw new Error('answer');
  });
  await new Promise((resolve) => request.once('close', resolve));
  assert.equal((answer as IncomingMessage | null)?.destroyed, true);
  assert.deepEqual(thrown, ['Error: answer']);
});
