import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import { connect, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { Ingress } from '../../src/ingress/ssh-ingress.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import type { IngressRoute, RoutesRequest } from '../../src/protocol/ingress-types.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { LISTEN_AT_NAMES } from '../../src/shared/setting-values.ts';
import { ownPort } from '../support/own-ports.ts';
import { dial, HOST, listen, readAll, target } from '../support/sockets.ts';
import { until } from '../support/waiting.ts';

/** Another loopback address of this machine. */
const OTHER_HOST = '127.0.0.2';
const log = createLog('test', 'silent');
const nowhere = new ControlPlaneClient({ address: 'http://127.0.0.1:1', token: 'none' });
const instance_id = newId('inst');

function route(port: number, change: Partial<IngressRoute> = {}): IngressRoute {
  const closed = { target: null, resets: 0, revoking: false, settling: false, wake: false };
  return { instance_id, host: HOST, port, ...closed, ...change };
}

async function ingressTo(
  t: TestContext,
  address: string | null,
): Promise<{ ingress: Ingress; port: number }> {
  const ingress = new Ingress({ listen: LISTEN_AT_NAMES, client: nowhere, log });
  t.after(() => ingress.close());
  const port = await ownPort();
  await ingress.apply([route(port, { target: address })]);
  return { ingress, port };
}

type Answer = (etag: string, routes: readonly IngressRoute[], changed?: readonly InstanceId[]) => void;

/** An ingress that runs beside a control plane of which there is only the call for routes; its own side of it is tested in test/control-plane. */
async function runIngress(
  t: TestContext,
  onRoutes: (asked: RoutesRequest, answer: Answer) => void,
): Promise<void> {
  const control = createHttpServer((request, response) => {
    void request.toArray().then((parts) => {
      if (request.url !== '/internal/v1/routes') return response.end('{}');
      onRoutes(JSON.parse(Buffer.concat(parts).toString()) as RoutesRequest, (etag, routes, changed) => {
        response.setHeader('content-type', 'application/json');
        response.end(JSON.stringify({ etag, changed, routes }));
      });
    });
  });
  const address = `http://${HOST}:${await listen(control)}`;
  const client = new ControlPlaneClient({ address, token: 'token' });
  const ended = new AbortController();
  const running = new Ingress({ listen: LISTEN_AT_NAMES, client, log }).run(ended.signal);
  t.after(async () => {
    ended.abort();
    await running;
    await client.close();
    control.closeAllConnections();
    control.close();
  });
}

test('bytes pass unchanged in both directions', async (t) => {
  const address = await target(t, (socket) => socket.pipe(socket));
  const { port } = await ingressTo(t, address);
  const socket = dial(t, port);
  const sent = randomBytes(10_000);
  socket.end(sent);
  assert.deepEqual(await readAll(socket), sent);
});

test('the first data of the VM arrives: sshd greets before its client', async (t) => {
  const address = await target(t, (socket) => socket.write('SSH-2.0-test\r\n'));
  const { port } = await ingressTo(t, address);
  const [greeting] = await once(dial(t, port), 'data');
  assert.equal(String(greeting), 'SSH-2.0-test\r\n');
});

test('64 MiB in each direction arrive complete and in order', async (t) => {
  const [up, down] = [randomBytes(64 * 1024 * 1024), randomBytes(64 * 1024 * 1024)];
  const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
  const received = Promise.withResolvers<string>();
  const address = await target(t, (socket) => {
    socket.end(down);
    void readAll(socket).then((bytes) => received.resolve(digest(bytes)), received.reject);
  });
  const { port } = await ingressTo(t, address);
  const socket = dial(t, port);
  socket.end(up);
  assert.equal(digest(await readAll(socket)), digest(down));
  assert.equal(await received.promise, digest(up));
});

test('a half-closed side still receives', async (t) => {
  const address = await target(t, (socket) => {
    void readAll(socket).then((request) => {
      // After the caller's end, and not at once.
      setImmediate(() => socket.end(`${request.length} bytes heard`));
    });
  });
  const { port } = await ingressTo(t, address);
  const socket = dial(t, port);
  socket.end('hello');
  assert.equal(String(await readAll(socket)), '5 bytes heard');
});

test('the end of either side closes the other', async (t) => {
  const accepted = Promise.withResolvers<Socket>();
  const address = await target(t, (socket) => accepted.resolve(socket));
  const { port } = await ingressTo(t, address);
  const caller = dial(t, port);
  const behind = await accepted.promise;
  caller.resetAndDestroy();
  await readAll(behind);

  const second = Promise.withResolvers<Socket>();
  const other = await ingressTo(t, await target(t, (socket) => second.resolve(socket)));
  const waiting = dial(t, other.port);
  (await second.promise).resetAndDestroy();
  await readAll(waiting);
});

test('the port of a stopped VM closes connections at once', async (t) => {
  const { port } = await ingressTo(t, null);
  assert.equal((await readAll(dial(t, port))).length, 0);
});

test('a VM that does not answer closes the connection', async (t) => {
  const { port } = await ingressTo(t, `${HOST}:${await ownPort()}`);
  assert.equal((await readAll(dial(t, port))).length, 0);
});

test('a new target applies to new connections; open ones stay', async (t) => {
  const one = await target(t, (socket) => socket.on('data', () => socket.write('one')));
  const two = await target(t, (socket) => socket.on('data', () => socket.write('two')));
  const { ingress, port } = await ingressTo(t, one);
  const first = dial(t, port);
  first.write('?');
  assert.equal(String((await once(first, 'data'))[0]), 'one');
  await ingress.apply([route(port, { target: two })]);
  const second = dial(t, port);
  second.write('?');
  assert.equal(String((await once(second, 'data'))[0]), 'two');
  first.write('?');
  assert.equal(String((await once(first, 'data'))[0]), 'one');
});

test('a removed route closes its port and its connections', async (t) => {
  const address = await target(t, (socket) => socket.write('hello'));
  const { ingress, port } = await ingressTo(t, address);
  const open = dial(t, port);
  await once(open, 'data');
  await ingress.apply([]);
  await readAll(open);
  const [error] = await once(connect({ port, host: HOST }), 'error');
  assert.equal(error.code, 'ECONNREFUSED');
});

test('concurrent routes open a port once, and it closes with its route', async (t) => {
  const ingress = new Ingress({ listen: LISTEN_AT_NAMES, client: nowhere, log });
  t.after(() => ingress.close());
  const port = await ownPort();
  const address = await target(t, (socket) => socket.end('hello'));
  await Promise.all([ingress.apply([route(port)]), ingress.apply([route(port, { target: address })])]);
  assert.equal(String(await readAll(dial(t, port))), 'hello');
  await ingress.apply([]);
  const [error] = await once(connect({ port, host: HOST }), 'error');
  assert.equal(error.code, 'ECONNREFUSED');
});

test('routes refreshed for a connection do not undo newer ones of the poll', async (t) => {
  const port = await ownPort();
  const address = await target(t, (socket) => socket.end('hello'));
  const [old, now] = [[route(port)], [route(port, { target: address })]];
  const opened = Promise.withResolvers<void>();
  let polled: (() => void) | undefined;
  let looked: (() => void) | undefined;
  await runIngress(t, ({ seen, at_once }, answer) => {
    if (at_once) {
      if (looked) return answer('now', now);
      looked = () => answer('old', old);
      polled?.();
    } else if (seen === null) answer('old', old);
    else if (seen === 'old') {
      // The poll is held until a connection has asked.
      polled = () => answer('now', now);
      opened.resolve();
    } else {
      // What the poll brought is in force: only now comes the answer to the connection, read before.
      looked?.();
    }
  });
  await opened.promise;
  assert.equal(String(await readAll(dial(t, port))), 'hello');
  assert.equal(String(await readAll(dial(t, port))), 'hello');
});

test('an answer with changes replaces the routes of its instances, and leaves all others', async (t) => {
  const greeter = async (text: string) => {
    const address = await target(t, (socket) => socket.write(text));
    return route(await ownPort(), { instance_id: newId('inst'), target: address });
  };
  const [gone, moved, kept, added] = [
    await greeter('gone'),
    await greeter('moved'),
    await greeter('kept'),
    await greeter('added'),
  ];
  const elsewhere = { ...moved, port: await ownPort() };
  const change = Promise.withResolvers<void>();
  await runIngress(t, ({ seen }, answer) => {
    if (seen === null) answer('e1', [gone, moved, kept]);
    else if (seen === 'e1') {
      const changed = [gone, moved, added].map((each) => each.instance_id);
      void change.promise.then(() => answer('e2', [elsewhere, added], changed));
    }
  });
  await until('the first routes are open', () => isOpen(kept.port));
  const open = dial(t, kept.port);
  assert.equal(String((await once(open, 'data'))[0]), 'kept');
  change.resolve();
  await until('the changes are in force', () => isOpen(added.port));
  assert.deepEqual([await isOpen(gone.port), await isOpen(moved.port)], [false, false]);
  for (const [{ port }, text] of [
    [elsewhere, 'moved'],
    [kept, 'kept'],
    [added, 'added'],
  ] as const) {
    assert.equal(String((await once(dial(t, port), 'data'))[0]), text);
  }
  assert.equal(open.destroyed, false, 'its connection stays');
});

test('a port that another program uses is reported, blocks no change, and is opened once it is free', async (t) => {
  const blocker = createServer();
  const [port, other] = [await listen(blocker), await ownPort()];
  const change = { instance_id: newId('inst'), target: await target(t, (socket) => socket.end()) };
  const reported = Promise.withResolvers<RoutesRequest['blocked']>();
  t.after(() => blocker.close());
  await runIngress(t, ({ seen, blocked }, answer) => {
    if (seen === null) answer('e1', [route(port)]);
    else if (seen === 'e1') {
      reported.resolve(blocked);
      answer('e2', [route(port), route(other, change)]);
    }
  });
  assert.deepEqual(await reported.promise, [
    { host: HOST, port, problem: 'another program uses the port, or another name listens there' },
  ]);
  await until('the other is open', () => isOpen(other));
  await new Promise((resolve) => blocker.close(resolve));
  await until('it is open', () => isOpen(port));
  assert.equal((await readAll(dial(t, port))).length, 0, 'its VM does not run');
});

test('names have the same port, each at its own local address; a name without one is not served', async (t) => {
  const by_name = new Map([
    ['a.example.org', HOST],
    ['b.example.org', OTHER_HOST],
    ['again.example.org', HOST],
  ]);
  const ingress = new Ingress({ listen: { every: null, by_name }, client: nowhere, log });
  t.after(() => ingress.close());
  const [port, unserved] = [await ownPort(), await ownPort()];
  const to = async (host: string, at: number) => {
    const address = await target(t, (socket) => socket.end(host));
    return route(at, { host, instance_id: newId('inst'), target: address });
  };
  const [a, b] = [await to('a.example.org', port), await to('b.example.org', port)];
  const again = await to('again.example.org', port);
  await ingress.apply([a, b, again, await to('c.example.org', unserved)]);
  const at = (host: string) => readAll(connect({ host, port })).then(String);
  assert.deepEqual([await at(HOST), await at(OTHER_HOST)], ['a.example.org', 'b.example.org']);
  assert.equal(await isOpen(unserved), false);
  await ingress.apply([b, again]);
  assert.deepEqual([await at(HOST), await at(OTHER_HOST)], ['again.example.org', 'b.example.org']);
});

async function isOpen(port: number): Promise<boolean> {
  const socket = connect({ port, host: HOST });
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}
