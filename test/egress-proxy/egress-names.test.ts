/** The guests' DNS server, asked by a client of this machine in a guest's place. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { test } from 'node:test';
import { serveTcp } from '../../src/egress-proxy/dns-server.ts';
import { NameResolver } from '../../src/egress-proxy/name-resolver.ts';
import { ProxiedGuest } from '../../src/egress-proxy/proxied-guest.ts';
import { Denials } from '../../src/protocol/denials.ts';
import { dnsQuery } from '../support/egress-attempts.ts';

const MIB = 2 ** 20;

function deniedGuest(): ProxiedGuest {
  return new ProxiedGuest(
    { address: '127.0.0.1', policy: { mode: 'deny', allow: [] }, secrets: [], authority: null },
    {
      resolver: new NameResolver({ servers: [], isClosed: () => true }),
      denials: new Denials(() => undefined),
      admit: async () => undefined,
    },
  );
}

test('a guest that asks by TCP and takes no answer is not read further, and its connection ends', async (t) => {
  const guest = deniedGuest();
  const server = createServer();
  serveTcp(server, () => guest, 1_000);
  server.listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  const accepted = once(server, 'connection') as Promise<[Socket]>;
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  t.after(() => client.destroy());
  client.on('error', () => undefined);
  client.pause();
  const query = dnsQuery('evil.test');
  const framed = Buffer.concat([Buffer.from([query.length >> 8, query.length & 255]), query]);
  // The kernel's buffers of both ends take some MiB.
  const asked = Buffer.concat(Array.from({ length: Math.ceil((32 * MIB) / framed.length) }, () => framed));
  client.write(asked);
  const [socket] = await accepted;
  let waiting_bytes = 0;
  socket.on('data', () => {
    waiting_bytes = Math.max(waiting_bytes, socket.writableLength);
  });
  await once(socket, 'close');
  assert.ok(socket.bytesRead < 16 * MIB, `${socket.bytesRead} of ${asked.length} bytes were read`);
  assert.ok(waiting_bytes < MIB, `${waiting_bytes} bytes of answers waited`);
});
