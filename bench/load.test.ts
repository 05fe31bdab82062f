import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { load } from './load.ts';

test('as many requests are under way as there are connections, in turn, and another status ends it', async (t) => {
  const paths = new Set<string | undefined>();
  const keys: unknown[] = [];
  const together = Promise.withResolvers<void>();
  let now = 0;
  let most = 0;
  const server = createServer((request, response) => {
    paths.add(request.url);
    if (request.url === '/idempotent') keys.push(request.headers['idempotency-key']);
    now += 1;
    most = Math.max(most, now);
    if (now === 4) together.resolve();
    // The first are answered once all four are there.
    void together.promise.then(() => {
      now -= 1;
      response.statusCode = request.url === '/missing' ? 404 : 200;
      response.end('{}');
    });
  }).listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const target = (...each: string[]) => ({
    origin,
    method: 'GET' as const,
    requests: each.map((path) => ({ path, headers: {} })),
    status: 200,
  });
  const { signal } = new AbortController();
  const measured = await load(target('/a', '/b', '/c'), 4, 50, signal);
  assert.ok(measured.per_second > 0 && measured.p50_ms <= measured.p99_ms);
  assert.deepEqual([...paths].sort(), ['/a', '/b', '/c']);
  assert.equal(most, 4);
  await load({ ...target('/idempotent'), idempotent: true }, 2, 50, signal);
  assert.ok(keys.length > 0 && keys.every((key) => typeof key === 'string'));
  assert.equal(new Set(keys).size, keys.length, 'a new key for each request');
  await assert.rejects(load(target('/missing'), 2, 50, signal), /404/);
});
