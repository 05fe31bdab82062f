/** Holding, revocations, limits and activity reports: one ingress with a scripted control plane. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import type { Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import type { IngressLimits } from '../../src/ingress/limits.ts';
import { Ingress } from '../../src/ingress/ssh-ingress.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import type { ActivityReport, IngressRoute, WakeResponse } from '../../src/protocol/ingress-types.ts';
import { newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { LISTEN_AT_NAMES } from '../../src/shared/setting-values.ts';
import { ownPort } from '../support/own-ports.ts';
import { dial, HOST, listen, readAll, target } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

const log = createLog('test', 'silent');
const instance_id = newId('inst');

interface Setup {
  readonly ingress: Ingress;
  readonly port: number;
  /** Instances that a start was asked for, in order. */
  readonly wakes: string[];
  readonly reports: ActivityReport[];
  /** What a wake is answered with; null: with a failure. */
  answer: WakeResponse | null;
  readonly client: ControlPlaneClient;
  /** What the control plane knows, which the ingress may not have heard yet; and how often it was asked. */
  newest: { readonly routes: IngressRoute[]; asked: number };
  set(change: Partial<IngressRoute>): Promise<void>;
}

async function setUp(
  t: TestContext,
  route: Partial<IngressRoute>,
  limits: Partial<IngressLimits> = {},
): Promise<Setup> {
  const wakes: string[] = [];
  const reports: ActivityReport[] = [];
  // Of the control plane only what the ingress says to it; its own side is tested in test/control-plane.
  const control = createHttpServer((request, response) => {
    void request.toArray().then((parts) => {
      const body = JSON.parse(Buffer.concat(parts).toString());
      if (request.url === '/internal/v1/wake') wakes.push(body.instance_id);
      if (request.url === '/internal/v1/activity') reports.push(body);
      if (request.url === '/internal/v1/routes' && setup.newest.routes.length > 0) {
        setup.newest.asked += 1;
        response.setHeader('content-type', 'application/json');
        response.end(JSON.stringify({ etag: 'e', routes: setup.newest.routes }));
        return;
      }
      response.statusCode = setup.answer === null ? 503 : 200;
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify(setup.answer));
    });
  });
  const client = new ControlPlaneClient({
    address: `http://${HOST}:${await listen(control)}`,
    token: 'token',
  });
  const ingress = new Ingress({ listen: LISTEN_AT_NAMES, client, log, limits });
  const port = await ownPort();
  const setup: Setup = {
    ingress,
    port,
    wakes,
    reports,
    answer: { outcome: 'coming' },
    client,
    newest: { routes: [], asked: 0 },
    set: (change) =>
      ingress.apply([
        {
          instance_id,
          host: HOST,
          port,
          target: null,
          resets: 0,
          revoking: false,
          settling: false,
          wake: false,
          ...route,
          ...change,
        },
      ]),
  };
  t.after(async () => {
    await ingress.close();
    await client.close();
    control.closeAllConnections();
    control.close();
  });
  await setup.set({});
  return setup;
}

const echo = (t: TestContext) => target(t, (socket) => socket.pipe(socket));
const closed = async (socket: Socket) => assert.equal((await readAll(socket)).length, 0);

test('a connection to a stopped VM requests its start, is held, and is then spliced with all it has sent', async (t) => {
  const { port, wakes, set } = await setUp(t, { wake: true });
  const socket = dial(t, port);
  socket.write('SSH-2.0-client\r\n');
  await until('a start is asked for', () => wakes[0] === instance_id);
  await set({ target: await echo(t) });
  const [answer] = await once(socket, 'data');
  assert.equal(String(answer), 'SSH-2.0-client\r\n');
  socket.write('more');
  assert.equal(String((await once(socket, 'data'))[0]), 'more');
});

test('more data than a held connection buffers arrives completely', async (t) => {
  const { port, set } = await setUp(t, { wake: true }, { held_bytes: 1_000 });
  const sent = Buffer.alloc(8 * 1024 * 1024, 'x');
  const socket = dial(t, port);
  socket.write(sent);
  await until('the kernel holds it back', () => socket.writableNeedDrain);
  const received = Promise.withResolvers<number>();
  const address = await target(t, (behind) => {
    let bytes = 0;
    behind.on('data', (part) => {
      bytes += part.length;
      if (bytes === sent.length) received.resolve(bytes);
    });
  });
  await set({ target: address });
  assert.equal(await received.promise, sent.length);
});

test('a wake is repeated until the VM runs, also after a failure', async (t) => {
  const setup = await setUp(t, { wake: true });
  setup.answer = null;
  const socket = dial(t, setup.port);
  await until('asked twice', () => setup.wakes.length >= 2);
  setup.answer = { outcome: 'coming' };
  await until('and again', () => setup.wakes.length >= 3);
  await setup.set({ target: await echo(t) });
  socket.write('hello');
  assert.equal(String((await once(socket, 'data'))[0]), 'hello');
});

test('a refused start closes held connections', async (t) => {
  const setup = await setUp(t, { wake: true });
  setup.answer = { outcome: 'refused', why: 'the quota' };
  await closed(dial(t, setup.port));
  assert.equal(setup.wakes.length, 1);
});

test('a VM that fails while it wakes closes held connections', async (t) => {
  const { port, wakes, set } = await setUp(t, { wake: true });
  const socket = dial(t, port);
  await until('it waits', () => wakes.length > 0);
  await set({ wake: false });
  await closed(socket);
});

test('no connection is held for longer than the limit', async (t) => {
  const { port } = await setUp(t, { wake: true }, { held_ms: 50 });
  await closed(dial(t, port));
});

test('a held connection that disconnects frees its place, and is not spliced', async (t) => {
  const { port, wakes, set } = await setUp(t, { wake: true }, { held_per_instance: 1 });
  const first = dial(t, port);
  await until('it waits', () => wakes.length > 0);
  await closed(dial(t, port));
  first.destroy();
  const second = await until('there is room', async () => {
    const socket = dial(t, port);
    const asked = wakes.length;
    const answer = await Promise.race([
      readAll(socket).then(() => null),
      until('it waits', () => wakes.length > asked).then(() => socket),
    ]);
    return answer;
  });
  await set({ target: await echo(t) });
  second.write('I');
  assert.equal(String((await once(second, 'data'))[0]), 'I');
});

test('an unconfirmed revocation holds new connections, and open ones stay', async (t) => {
  const { port, set } = await setUp(t, { target: await echo(t) });
  const there = dial(t, port);
  there.write('1');
  await once(there, 'data');
  await set({ revoking: true });
  const late = dial(t, port);
  late.write('2');
  there.write('3');
  assert.equal(String((await once(there, 'data'))[0]), '3');
  assert.equal(late.bytesRead, 0);
  await set({ revoking: false });
  assert.equal(String((await once(late, 'data'))[0]), '2');
});

test('a revocation that is not confirmed in time ends all connections, and closes the port until it is confirmed', async (t) => {
  const { port, set } = await setUp(t, { target: await echo(t) }, { revoking_ms: 50 });
  const there = dial(t, port);
  there.write('1');
  await once(there, 'data');
  await set({ revoking: true });
  const late = dial(t, port);
  await Promise.all([readAll(there), closed(late)]);
  await closed(dial(t, port));
  // A new target does not open it, a confirmation does.
  await set({ revoking: true, target: await echo(t) });
  await closed(dial(t, port));
  await set({ revoking: false });
  const back = dial(t, port);
  back.write('4');
  assert.equal(String((await once(back, 'data'))[0]), '4');
});

test('new connections are held until the guest accepts all keys', async (t) => {
  const { port, set } = await setUp(t, { target: await echo(t) });
  const there = dial(t, port);
  there.write('1');
  await once(there, 'data');
  await set({ settling: true });
  const late = dial(t, port);
  late.write('2');
  there.write('3');
  assert.equal(String((await once(there, 'data'))[0]), '3');
  assert.equal(late.bytesRead, 0);
  await set({ settling: false });
  assert.equal(String((await once(late, 'data'))[0]), '2');
});

test('connections stop waiting for added keys after a time, but not for a revocation', async (t) => {
  const { port, set } = await setUp(t, { target: await echo(t), settling: true }, { settling_ms: 50 });
  for (const said of ['1', '2']) {
    const socket = dial(t, port);
    socket.write(said);
    assert.equal(String((await once(socket, 'data'))[0]), said);
    await set({ settling: true, wake: true });
  }
  // A revocation is waited for all the same.
  await set({ settling: true, revoking: true });
  const held = dial(t, port);
  held.write('3');
  await once(held, 'connect');
  assert.equal(held.bytesRead, 0);
  await set({ settling: true });
  assert.equal(String((await once(held, 'data'))[0]), '3');
});

test('without room to hold, connections pass while a key is being added', async (t) => {
  const limits = { held_per_instance: 1 };
  const { port, set } = await setUp(t, { target: await echo(t), settling: true }, limits);
  const first = dial(t, port);
  first.write('1');
  await once(first, 'connect');
  const second = dial(t, port);
  second.write('2');
  assert.equal(String((await once(second, 'data'))[0]), '2');
  assert.equal(first.bytesRead, 0);
  await set({});
  assert.equal(first.bytesRead, 0);
  await set({ settling: false });
  assert.equal(String((await once(first, 'data'))[0]), '1');
});

test('a connection held for a confirmation waits for the next boot when the VM stops', async (t) => {
  const { port, set, wakes } = await setUp(t, { target: await echo(t), revoking: true, wake: true });
  const socket = dial(t, port);
  socket.write('I');
  await once(socket, 'connect');
  await set({ target: null, revoking: false });
  await until('a start is asked for', () => wakes.length > 0);
  await set({ target: await echo(t), revoking: false });
  assert.equal(String((await once(socket, 'data'))[0]), 'I');
});

test('a closing ingress accepts no connections, and ends the open ones', async (t) => {
  const { ingress, port } = await setUp(t, { target: await echo(t) });
  const open = dial(t, port);
  open.write('?');
  await once(open, 'data');
  await Promise.all([ingress.close(), readAll(open)]);
  const [error] = await once(dial(t, port), 'error');
  assert.equal(error.code, 'ECONNREFUSED');
});

test('connections beyond the limit of an instance, or of the total, are closed at once', async (t) => {
  for (const limits of [{ connections_per_instance: 2 }, { connections: 2, assured_per_instance: 0 }]) {
    const { port } = await setUp(t, { target: await echo(t) }, limits);
    const open = [dial(t, port), dial(t, port)];
    for (const socket of open) {
      socket.write('!');
      await once(socket, 'data');
    }
    await closed(dial(t, port));
    open[0]?.destroy();
    await until('there is room again', async () => {
      const socket = dial(t, port);
      socket.write('?');
      return Promise.race([once(socket, 'data').then(() => true), readAll(socket).then(() => false)]);
    });
  }
});

test('a silent connection is closed', async (t) => {
  const { port } = await setUp(t, { target: await echo(t) }, { silent_ms: 50 });
  await closed(dial(t, port));
});

test('activity reports contain open and closed connections, and what an earlier failed report contained', async (t) => {
  const setup = await setUp(t, { target: await echo(t) }, { report_ms: 100 });
  const ended = new AbortController();
  const running = setup.ingress.run(ended.signal);
  t.after(async () => {
    ended.abort();
    await running;
  });
  const reported = (wanted: (report: ActivityReport) => boolean) =>
    until('it is reported', () => setup.reports.slice(from).find(wanted));
  let from = 0;
  await reported(({ active }) => active.length === 0);
  const socket = dial(t, setup.port);
  socket.write('!');
  await once(socket, 'data');
  const open = await reported(({ active }) => active.length === 1);
  assert.equal(open.active[0]?.instance_id, instance_id);
  assert(open.watched_ms >= 0);
  // While nothing is heard the connection ends.
  setup.answer = null;
  socket.destroy();
  from = setup.reports.length;
  await reported(() => true);
  setup.answer = { outcome: 'coming' };
  from = setup.reports.length;
  const told = await reported(() => true);
  assert.equal(told.active.length, 1, 'its end lies in the time that was not heard of');
  from = setup.reports.length;
  assert.equal((await reported(() => true)).active.length, 0);
});

test('each reset of a guest, also during a restart, ends earlier connections; later ones stay', async (t) => {
  const address = await echo(t);
  const { port, set } = await setUp(t, { target: address });
  const talk = async (socket: Socket) => {
    socket.write('hello');
    await once(socket, 'data');
    return socket;
  };
  const before = await talk(dial(t, port));
  await Promise.all([once(before, 'end'), set({ target: address, resets: 1 })]);
  const between = await talk(dial(t, port));
  await set({ target: address, resets: 1, settling: true });
  await talk(between);
  await Promise.all([once(between, 'end'), set({ target: address, resets: 2 })]);
  const since = await talk(dial(t, port));
  await set({ target: address, resets: 2, wake: true });
  await talk(since);
});

test('a VM that has just started is reached before its new route arrives', async (t) => {
  const { port, newest } = await setUp(t, {});
  newest.routes.push({
    instance_id,
    host: HOST,
    port,
    target: await echo(t),
    resets: 0,
    revoking: false,
    settling: false,
    wake: false,
  });
  const socket = dial(t, port);
  socket.write('SSH-2.0-client\r\n');
  assert.equal(String((await once(socket, 'data'))[0]), 'SSH-2.0-client\r\n');
});

test('connections to a VM that does not run are closed, and many at once refresh the routes once or twice', async (t) => {
  const { port, newest } = await setUp(t, {});
  const stopped = { target: null, resets: 0, revoking: false, settling: false, wake: false };
  newest.routes.push({ instance_id, host: HOST, port, ...stopped });
  await Promise.all(Array.from({ length: 50 }, () => closed(dial(t, port))));
  assert.ok(newest.asked >= 1 && newest.asked <= 10, `${newest.asked} readings for 50 connections`);
});
