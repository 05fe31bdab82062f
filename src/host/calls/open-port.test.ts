import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { test } from 'node:test';
import type { Machine } from '../vm/machine.ts';
import { dialSshd } from './open-port.ts';

test('a connection that its VM breaks before it reaches its caller is closed, and nothing else', async (t) => {
  const sshd = createServer().listen(0, '127.0.0.1');
  t.after(() => sshd.close());
  await once(sshd, 'listening');
  const accepted = once(sshd, 'connection') as Promise<[Socket]>;
  const { port } = sshd.address() as AddressInfo;
  const socket = await dialSshd({ record: { network: { kind: 'user', ssh_forward_port: port } } } as Machine);
  const [theirs] = await accepted;
  theirs.resetAndDestroy();
  // Not by `once`, which would be there for an error too.
  await new Promise((resolve) => socket.on('close', resolve));
  assert.equal(socket.errored?.message, 'read ECONNRESET');
});
