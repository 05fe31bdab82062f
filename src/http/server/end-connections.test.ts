/** A server's end does not wait for connections on which nobody asks any more. */
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

test('a call that is answered while the server closes is answered, and its connection ends with it', async (t) => {
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

test('a connection on which nothing was asked, and a call that is never answered, are cut off in the end', async (t) => {
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
