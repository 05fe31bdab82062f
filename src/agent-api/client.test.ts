import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { newId } from '../lib/ids.ts';
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
