import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { joinStreams } from './join-streams.ts';

const CHUNK = Buffer.alloc(64 * 1024);

/** Both ends of a connection on loopback. */
async function pair(t: TestContext): Promise<[Socket, Socket]> {
  const server = createServer({ allowHalfOpen: true }).listen(0, '127.0.0.1');
  const accepted = once(server, 'connection') as Promise<[Socket]>;
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const near = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  const [[far]] = await Promise.all([accepted, once(near, 'connect')]);
  server.close();
  for (const socket of [near, far]) {
    socket.on('error', () => undefined);
    t.after(() => socket.destroy());
  }
  return [near, far];
}

/** Not by `once`, which an error rejects. */
const closed = (socket: Socket) =>
  socket.closed || new Promise<void>((resolve) => socket.on('close', () => resolve()));

/** Says something without an end, and heeds nobody else's. */
function talk(socket: Socket): void {
  while (!socket.destroyed && socket.write(CHUNK));
  socket.once('drain', () => talk(socket));
}

test('a side that disconnects during a transfer leaves nothing open', {
  timeout: 20_000,
}, async (t) => {
  const [[near, caller], [inner, sshd]] = [await pair(t), await pair(t)];
  joinStreams(near, inner);
  talk(sshd);
  await once(caller, 'data');
  caller.pause().end();
  await once(near, 'end');
  caller.destroy();
  await Promise.all([near, inner, sshd].map(closed));
});

test('data up to the end of a side arrives, in both directions', async (t) => {
  const [[near, caller], [inner, sshd]] = [await pair(t), await pair(t)];
  joinStreams(near, inner);
  const heard = { sshd: 0, caller: 0 };
  sshd.on('data', (part: Buffer) => {
    heard.sshd += part.length;
  });
  caller.on('data', (part: Buffer) => {
    heard.caller += part.length;
  });
  const said = Buffer.alloc(4 * 1024 * 1024);
  caller.end(said);
  await once(sshd, 'end');
  sshd.end(said);
  await Promise.all([near, inner, caller, sshd].map(closed));
  assert.deepEqual(heard, { sshd: said.length, caller: said.length });
});

test('a stream that was closed before the join ends the other', { timeout: 20_000 }, async (t) => {
  const [[near, caller], [inner, sshd]] = [await pair(t), await pair(t)];
  sshd.resetAndDestroy();
  await closed(inner);
  joinStreams(near, inner);
  caller.resume();
  await closed(near);
  await once(caller, 'end');
});
