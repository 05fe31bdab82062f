import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { test } from 'node:test';
import { Denials } from '../protocol/denials.ts';
import { reportThrows } from '../shared/contain.ts';
import { serveUdp } from './dns-server.ts';
import { NameResolver } from './name-resolver.ts';
import { ProxiedGuest } from './proxied-guest.ts';

test('a look-up from port 0, or one whose answer fails, ends nothing', async (t) => {
  const faults: string[] = [];
  reportThrows((fault) => faults.push(fault.message));
  const resolver = new NameResolver({ servers: [], isClosed: () => false });
  const guest = new ProxiedGuest(
    { address: '127.0.0.1', policy: { mode: 'deny', allow: [] }, secrets: [], authority: null },
    { resolver, denials: new Denials(() => undefined), admit: async () => undefined },
  );
  const [server, client] = [createSocket('udp4'), createSocket('udp4')];
  t.after(() => {
    server.close();
    client.close();
  });
  let broken = false;
  guest.permitsName = () => {
    if (broken) throw new Error('a fault');
    return false;
  };
  serveUdp(server, () => guest);
  server.bind(0, '127.0.0.1');
  await once(server, 'listening');
  const query = Buffer.from('00010100000100000000000001610474657374000001' + '0001', 'hex');
  // No program can send from port 0 without raw sockets, which a guest has.
  server.emit('message', query, { address: '127.0.0.1', port: 0, family: 'IPv4', size: query.length });
  const ask = () => client.send(query, server.address().port, '127.0.0.1');
  broken = true;
  server.emit('message', query, { address: '127.0.0.1', port: 1, family: 'IPv4', size: query.length });
  broken = false;
  ask();
  const [answer] = (await once(client, 'message')) as [Buffer];
  assert.equal(answer.readUInt16BE(0), 1);
  assert.deepEqual(faults, ['a fault']);
});
