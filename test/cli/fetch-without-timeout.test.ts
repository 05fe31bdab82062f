/** The fetch of commands whose answer may take longer than Node's own fetch waits. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { Agent, getGlobalDispatcher, setGlobalDispatcher } from 'undici';
import { fetchWithoutTimeout } from '../../src/cli/guest-connections.ts';

test('it still waits when an ordinary one that began after it has given up', async (t) => {
  const before = getGlobalDispatcher();
  const hasty = new Agent({ headersTimeout: 100 });
  setGlobalDispatcher(hasty);
  const waiting: ServerResponse[] = [];
  const server = createServer((_request, response) => void waiting.push(response)).listen(0, '127.0.0.1');
  t.after(async () => {
    setGlobalDispatcher(before);
    await hasty.destroy();
    server.close();
    server.closeAllConnections();
  });
  await once(server, 'listening');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const asked = once(server, 'request');
  const patient = (await fetchWithoutTimeout())(url);
  await asked;
  const given_up = (error: Error) => (error.cause as { code?: string }).code === 'UND_ERR_HEADERS_TIMEOUT';
  await assert.rejects(fetch(url), given_up);
  waiting[0]?.end('late');
  assert.equal(await (await patient).text(), 'late');
});
