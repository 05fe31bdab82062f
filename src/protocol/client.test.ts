import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { newId } from '../shared/ids.ts';
import { ControlPlaneClient } from './client.ts';

test('a lease is renewed while all other calls wait for their answers', async (t) => {
  const server = createServer((request, response) => {
    request.resume();
    if (request.url === '/internal/v1/lease') response.end(JSON.stringify({ lease_ms: 40_000 }));
  }).listen(0, '127.0.0.1');
  t.after(() => server.close().closeAllConnections());
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const client = new ControlPlaneClient({ address: `http://127.0.0.1:${port}`, token: 'x' });
  const heads = Array.from({ length: 64 }, () => client.head(newId('inst')));
  const ended = Promise.allSettled(heads);
  const { signal } = new AbortController();
  assert.deepEqual(await client.renewLease({ kept_ms: null }, 5_000, signal), { lease_ms: 40_000 });
  await client.close();
  await ended;
});

/** Two control planes that renew leases. `answers`: what they do next; the sockets of the renewals, as they arrived. */
async function twoControlPlanes(t: TestContext) {
  const state = { answers: 'yes' as 'yes' | 'unavailable' | 'nothing', sockets: [] as Socket[] };
  const urls = [];
  for (let n = 0; n < 2; n++) {
    const server = createServer((request, response) => {
      request.resume();
      state.sockets.push(request.socket);
      if (state.answers === 'nothing') return;
      response.statusCode = state.answers === 'yes' ? 200 : 503;
      response.end(JSON.stringify({ lease_ms: 40_000 }));
    }).listen(0, '127.0.0.1');
    t.after(() => server.close().closeAllConnections());
    await once(server, 'listening');
    urls.push(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  }
  const [address = '', url = ''] = urls;
  const others = [{ url, fingerprint: undefined }];
  const client = new ControlPlaneClient({ address, token: 'x', known: others });
  t.after(() => client.close());
  return { state, renew: () => client.renewLease({ kept_ms: null }, 500, AbortSignal.timeout(60_000)) };
}

test('a host that hears no answer renews once more at most, not over each connection that it had', async (t) => {
  const { state, renew } = await twoControlPlanes(t);
  await renew();
  state.answers = 'unavailable';
  await assert.rejects(renew(), /answers .* with 503/);
  state.answers = 'yes';
  await renew();
  const before = [...state.sockets];
  assert.equal(new Set(before).size, 2, 'a connection to each');
  state.answers = 'nothing';
  for (let n = 0; n < 4; n++) await assert.rejects(renew(), /does not answer/);
  const over_old = state.sockets.slice(before.length).filter((socket) => before.includes(socket));
  assert.equal(over_old.length, 1);
});
