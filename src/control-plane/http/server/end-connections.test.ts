/** A closing server does not wait for idle connections. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { type TestContext, test } from 'node:test';
import Fastify from 'fastify';
import { endConnectionsAtClose } from './end-connections.ts';

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
