/** The connection of a refused upgrade ends with the answer, even if the peer keeps its side open. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { test } from 'node:test';
import { CONSOLE_PROTOCOL, consoleStreamPath } from '../../src/protocol/host-calls.ts';
import { apiForFile } from '../support/api.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();

/** The whole answer, to a peer that keeps its side open; resolves once the server has closed the connection. */
async function refused(origin: string, path: string, headers: Record<string, string>): Promise<string> {
  const { hostname, port } = new URL(origin);
  const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true });
  const lines = Object.entries({ host: hostname, connection: 'Upgrade', ...headers });
  socket.write(
    `GET ${path} HTTP/1.1\r\n${lines.map(([name, value]) => `${name}: ${value}\r\n`).join('')}\r\n`,
  );
  let text = '';
  socket.on('data', (chunk: Buffer) => {
    text += chunk;
  });
  await once(socket, 'end');
  socket.on('error', () => undefined);
  const letGo = () => {
    if (!socket.destroyed) socket.write('x');
    return socket.destroyed;
  };
  await until('what is sent after the answer reaches nobody', letGo).finally(() => socket.destroy());
  return text;
}

for (const [path, status] of [
  ['/v1/instances/x/vm/console/stream', 404],
  ['/v1/instances/inst_00000000000000000000000000/vm/console/stream?ticket=x', 401],
] as const) {
  test(`${status} of a console`, async () => {
    const text = await refused(api.origin, path, { upgrade: 'websocket' });
    assert.match(text, new RegExp(`^HTTP/1.1 ${status} [\\s\\S]*"request_id":"req_[0-9a-f]{24}"}}$`));
  });
}

test('401 of the internal API', async () => {
  const path = consoleStreamPath('00000000-0000-0000-0000-000000000000');
  const headers = { upgrade: CONSOLE_PROTOCOL, authorization: `Bearer ${'x'.repeat(64)}` };
  assert.match(await refused(api.internal_origin, path, headers), /^HTTP\/1.1 401 [\s\S]*"}}$/);
});
