/** Connections that do not log in cannot block the guest's sshd, and those of one owner not everybody's instances. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { InstancePort } from '../../src/ingress/instance-port.ts';
import { type IngressLimits, LIMITS, Totals } from '../../src/ingress/limits.ts';
import type { IngressRoute } from '../../src/protocol/ingress-types.ts';
import { sourceOf } from '../../src/shared/connection-budget.ts';
import { newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { ownPort } from '../support/own-ports.ts';
import { dial, HOST, target } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

const OTHER = '127.0.0.2';
const BANNER = 'SSH-2.0-client\r\n';
/** A key exchange, as far as the ingress can tell. */
const LOGIN = Buffer.alloc(LIMITS.login_bytes, 'x');

/** A port that echoes. */
async function portWith(t: TestContext, limits: Partial<IngressLimits>, totals = new Totals(), to?: string) {
  const port = await ownPort();
  const route = {
    ...{
      instance_id: newId('inst'),
      host: HOST,
      port,
      target: to ?? (await target(t, (socket) => socket.pipe(socket))),
    },
    ...{ resets: 0, revoking: false, settling: false, wake: false },
  };
  const open = new InstancePort(route, {
    limits: { ...LIMITS, ...limits },
    totals,
    log: createLog('test', 'silent'),
    events: { waiting: () => undefined, active: () => undefined, refresh: async () => undefined },
  });
  await open.listen(HOST);
  t.after(() => open.destroy());
  const come = async (from: string, says: string | Buffer) => {
    const socket = dial(t, port, from);
    socket.write(says);
    let got = 0;
    const count = (part: Buffer) => {
      got += part.length;
    };
    socket.on('data', count);
    await until('it is answered', () => got === says.length, { timeout_ms: 30_000 });
    socket.off('data', count);
    return socket;
  };
  const set = (change: Partial<IngressRoute>) => open.update({ ...route, ...change });
  return { come, port, set };
}

const isClosed = async (socket: Socket) => {
  socket.resume();
  await until('it is closed', () => socket.readableEnded || socket.closed, { timeout_ms: 30_000 });
};
async function isOpen(socket: Socket): Promise<void> {
  socket.write('?');
  assert.equal(String((await once(socket, 'data'))[0]), '?');
}

test('beyond the limit the oldest early connection is evicted, never one that may have logged in', async (t) => {
  const { come } = await portWith(t, { early_per_instance: 2 });
  const logged_in = await come(HOST, LOGIN);
  const early = [];
  for (let i = 0; i < 3; i++) early.push(await come(HOST, BANNER));
  await isClosed(early[0] as Socket);
  for (const socket of [logged_in, early[1], early[2]]) await isOpen(socket as Socket);
});

test('a source with many connections displaces only its own', async (t) => {
  const { come } = await portWith(t, { early_per_instance: 4 });
  const elsewhere = await come(OTHER, BANNER);
  const many = [];
  for (let i = 0; i < 12; i++) many.push(await come(HOST, BANNER));
  await Promise.all(many.slice(0, 9).map(isClosed));
  for (const socket of [elsewhere, ...many.slice(9)]) await isOpen(socket);
});

test('connections that may still log in are bounded per source; another source gets in', async (t) => {
  const { come, port } = await portWith(t, { young_per_source: 3 });
  const early = await come(HOST, BANNER);
  const sent = [];
  for (let i = 0; i < 3; i++) sent.push(await come(HOST, LOGIN));
  await isClosed(early);
  await isClosed(dial(t, port));
  await isOpen(await come(OTHER, BANNER));
  for (const socket of sent) await isOpen(socket);
});

test('connections older than the login timeout do not count', async (t) => {
  const { come } = await portWith(t, { young_per_source: 1, young_ms: 0 });
  const sockets = [];
  for (let i = 0; i < 3; i++) sockets.push(await come(HOST, LOGIN));
  for (const socket of sockets) await isOpen(socket);
});

test('of a burst, only connections that are still open reach the guest', async (t) => {
  let accepted = 0;
  const counted = await target(t, () => {
    accepted += 1;
  });
  const { port } = await portWith(
    t,
    { crowd: 2, early_per_instance: 4, crowd_ms: 500 },
    new Totals(),
    counted,
  );
  const sockets = Array.from({ length: 60 }, () => dial(t, port));
  for (const socket of sockets) socket.write(BANNER);
  await until('all but few have gone', () => {
    for (const socket of sockets) socket.resume();
    return sockets.filter((socket) => socket.readableEnded || socket.closed).length === 56;
  });
  await until('those that are left are there', () => accepted >= 4);
  assert(accepted <= 10, `${accepted} of 60 went on`);
});

test('beyond the total limit the oldest early connection of all instances is evicted', async (t) => {
  const totals = new Totals();
  const [one, other] = [await portWith(t, { early: 1 }, totals), await portWith(t, { early: 1 }, totals)];
  const first = await one.come(HOST, BANNER);
  const second = await other.come(HOST, BANNER);
  await isClosed(first);
  await isOpen(second);
  second.destroy();
});

test('a source is an IPv4 address or an IPv6 /64', () => {
  for (const [address, source] of [
    ['192.0.2.7', '192.0.2.7'],
    ['::ffff:192.0.2.7', '192.0.2.7'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2'],
    ['2001:db8:1:2::9', '2001:db8:1:2'],
    ['fe80::1%eth0', 'fe80:0:0:0'],
    [undefined, ''],
  ] as const)
    assert.equal(sourceOf(address), source);
});

test('the connections of others, open or held, never take an instance its last places', async (t) => {
  const limits = { connections: 2, held: 2, assured_per_instance: 1 };
  for (const settling of [false, true]) {
    const totals = new Totals();
    const theirs = await portWith(t, limits, totals);
    const own = await portWith(t, limits, totals);
    for (const each of [theirs, own]) each.set({ settling });
    for (const { port } of [theirs, theirs]) dial(t, port);
    const held = () => (settling ? totals.held : totals.connections);
    await until('theirs are there', () => held() === 2);
    const socket = dial(t, own.port);
    await until('another one is', () => held() === 3);
    for (const { port } of [theirs, own]) await isClosed(dial(t, port));
    own.set({ settling: false });
    await isOpen(socket);
  }
});

test('an address has so many connections over all instances; another one, and a trusted proxy, are not concerned', async (t) => {
  const limits = { connections: 40 };
  const totals = new Totals(limits, { per_source: 6, isProxy: (address) => address === '127.0.0.9' });
  const ports = await Promise.all([portWith(t, limits, totals), portWith(t, limits, totals)]);
  const [first, second] = ports;
  const in_use: Socket[] = [];
  for (const each of [first, second, first, second, first, second])
    in_use.push(await each.come(OTHER, LOGIN));
  await isClosed(dial(t, first.port, OTHER));
  await isOpen(await first.come(HOST, BANNER));
  for (let count = 0; count < 8; count++) await second.come('127.0.0.9', LOGIN);
  in_use[0]?.destroy();
  await until('its place is free', async () => {
    const socket = dial(t, first.port, OTHER);
    socket.write(LOGIN);
    await Promise.race(['data', 'end', 'close'].map((event) => once(socket, event)));
    return socket.bytesRead > 0;
  });
  for (const each of in_use.slice(1)) await isOpen(each);
});
