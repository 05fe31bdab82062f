import assert from 'node:assert/strict';
import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { after, type TestContext, test } from 'node:test';
import Fastify from 'fastify';
import { disconnectSignal, endConnectionsAtClose } from './connections.ts';

const REQUEST = 'GET / HTTP/1.1\r\nHost: x\r\n\r\n';

const app = Fastify();
after(() => app.close());
/** Answers the next request. */
let answer: (signal: () => AbortSignal) => Promise<void> = async () => undefined;
app.get('/', async (_, reply) => {
  await answer(() => disconnectSignal(reply));
  return 'done';
});
await app.listen({ port: 0, host: '127.0.0.1' });
const { port } = app.server.address() as AddressInfo;

/** Resolves once aborted. */
const aborted = async (signal: AbortSignal) => {
  if (!signal.aborted) await once(signal, 'abort');
};

test('the signal aborts when the caller disconnects', async () => {
  const socket = connect(port, '127.0.0.1');
  await new Promise<void>((resolve) => {
    answer = async (signal) => {
      socket.destroy();
      resolve(aborted(signal()));
    };
    socket.write(REQUEST);
  });
});

test('the signal is already aborted if the caller has disconnected before', async () => {
  const socket = connect(port, '127.0.0.1');
  await new Promise<void>((resolve, reject) => {
    app.server.once('connection', (connection) => {
      answer = async (signal) => {
        socket.destroy();
        await once(connection, 'close');
        signal().aborted ? resolve() : reject(new Error('not noticed'));
      };
    });
    socket.write(REQUEST);
  });
});

test('it aborts for a response that waits for another on its connection', async () => {
  const socket = connect(port, '127.0.0.1');
  const ends = await new Promise<Promise<void>[]>((resolve) => {
    const heard: Promise<void>[] = [];
    answer = async (signal) => {
      heard.push(aborted(signal()));
      if (heard.length === 2) resolve(heard);
      await heard[0];
    };
    socket.write(REQUEST + REQUEST);
  });
  socket.destroy();
  await Promise.all(ends);
});

test('an answer leaves no listener behind on the connection', async () => {
  const connected = once(app.server, 'connection');
  const socket = connect(port, '127.0.0.1');
  const [connection] = await connected;
  const listeners = () => connection.listenerCount('close');
  const before = listeners();
  let heard = Promise.resolve();
  answer = async (signal) => {
    heard = aborted(signal());
  };
  socket.write(REQUEST);
  await once(socket, 'data');
  await heard;
  assert.equal(listeners(), before);
  socket.destroy();
});

/** A closing server does not wait for idle connections. */

const NEVER_MS = 3_600_000;

async function serverOf(t: TestContext, grace_ms: number) {
  const app = Fastify({ keepAliveTimeout: NEVER_MS });
  endConnectionsAtClose(app, grace_ms);
  const asked = Promise.withResolvers<void>();
  const answer = Promise.withResolvers<string>();
  app.get('/', () => {
    asked.resolve();
    return answer.promise;
  });
  await app.listen({ host: '127.0.0.1', port: 0 });
  t.after(() => app.server.closeAllConnections());
  return { app, asked, answer, port: (app.server.address() as AddressInfo).port };
}

test('a call in progress is answered while the server closes, and its connection ends afterwards', async (t) => {
  const { app, asked, answer, port } = await serverOf(t, NEVER_MS);
  const agent = new Agent({ keepAlive: true });
  t.after(() => agent.destroy());
  const call = request({ host: '127.0.0.1', port, agent }).end();
  await asked.promise;
  const closed = app.close();
  answer.resolve('said');
  const [response] = await once(call, 'response');
  assert.equal(response.statusCode, 200);
  response.resume();
  await closed;
});

test('a connection without a request, and a call without an answer, are cut off after the grace period', async (t) => {
  const { app, asked, port } = await serverOf(t, 100);
  const silent = connect({ host: '127.0.0.1', port });
  await once(silent, 'connect');
  const call = request({ host: '127.0.0.1', port }).end();
  const failed = once(call, 'error');
  await asked.promise;
  const cut = once(silent, 'close');
  await app.close();
  await Promise.all([failed, cut]);
});
