import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { S3Store } from './s3-store.ts';

const HOUR_MS = 3_600_000;

test('requests are signed for the store’s time when our clock jumps, and when it jumps back', async (t) => {
  const now = Date.now();
  const server = createServer((_request, response) => {
    response.sendDate = false;
    response.writeHead(403, { date: new Date(now).toUTCString() }).end();
  }).listen(0, '127.0.0.1');
  t.after(() => server.close().closeAllConnections());
  await once(server, 'listening');
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const keys = { access_key_id: 'a', secret_access_key: 'b', session_token: null };
  const store = new S3Store({ bucket: 'bucket', endpoint, region: 'region', ...keys });
  t.after(() => store.close());
  const signedFor = async () => {
    const { headers } = await store.sign({ method: 'GET', key: 'key' });
    const { value = '' } = headers.find(({ name }) => name === 'x-amz-date') ?? {};
    return Date.parse(value.replace(/^(....)(..)(..T..)(..)(..Z)$/, '$1-$2-$3:$4:$5'));
  };
  const isNow = (ms: number) => Math.abs(ms - now) < 5 * 60_000;
  assert(isNow(await signedFor()));
  for (const jump_ms of [HOUR_MS, 0, -HOUR_MS, 0]) {
    t.mock.timers.enable({ apis: ['Date'], now: now + jump_ms });
    const dates = await Promise.all([signedFor(), signedFor()]);
    t.mock.timers.reset();
    for (const date of dates)
      assert(isNow(date), `after a jump to ${jump_ms} ms: ${new Date(date).toISOString()}`);
  }
});
