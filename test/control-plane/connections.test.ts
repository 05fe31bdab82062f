/** Connections that nobody uses: to the API, in the control plane's own process with a low limit of open files, and to the listener for hosts. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { connect as connectTls } from 'node:tls';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../src/protocol/protocol.ts';
import { ConnectionBudget } from '../../src/shared/connection-budget.ts';
import { apiForFile } from '../support/api.ts';
import { startDatabase, type TestDatabase } from '../support/database.ts';
import { ownPort } from '../support/own-ports.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { HOST } from '../support/sockets.ts';
import { until, untilWorks } from '../support/waiting.ts';

const MAIN = join(import.meta.dirname, '..', '..', 'src', 'main.ts');
const OPEN_FILES = 240;
const STRANGERS = ['127.0.0.2', '127.0.0.3', '127.0.0.4'];
const A_PROXY = '127.0.0.9';

describe('idle connections to the API', () => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-connections-'));
  const sockets: Socket[] = [];
  let database: TestDatabase;
  let role: ChildProcess;
  let port = 0;

  before(async () => {
    database = await startDatabase();
    port = await ownPort();
    mkdirSync(join(folder, 'run'), { mode: 0o700 });
    role = spawn(
      'sh',
      ['-c', `ulimit -n ${OPEN_FILES}; exec "$@"`, 'sh', process.execPath, MAIN, 'control-plane'],
      {
        stdio: ['ignore', 'ignore', 'inherit'],
        env: {
          PATH: process.env['PATH'],
          DATABASE_URL: database.url,
          BERTH_DATA_DIR: folder,
          BERTH_LISTEN: `localhost:${port}`,
          BERTH_SECRET_KEY: randomBytes(32).toString('hex'),
          BERTH_ADMIN_PASSWORD: randomBytes(20).toString('hex'),
          BERTH_TRUSTED_PROXIES: A_PROXY,
          BERTH_CONNECTIONS_PER_ADDRESS: '40',
          BERTH_LOG_LEVEL: 'fatal',
        },
      },
    );
    await untilWorks('it listens', async () => void (await get('/healthz')), { timeout_ms: 60_000 });
  });
  after(async () => {
    for (const each of sockets) each.destroy();
    if (role.exitCode === null && role.signalCode === null) {
      role.kill();
      await once(role, 'exit');
    }
    await database.close();
    rmSync(folder, { recursive: true, force: true });
  });

  /** On a connection of its own. */
  async function get(path: string, from = HOST): Promise<{ status: number | undefined; said: string }> {
    const asked = request({ host: HOST, port, path, localAddress: from, agent: false });
    asked.end();
    const [answer] = await once(asked, 'response');
    return { status: answer.statusCode, said: await text(answer) };
  }

  /** Connections that send `first`, and no more; those that are open once all were accepted or refused. */
  async function hold(from: string, count: number, first = ''): Promise<() => number> {
    const all = Array.from({ length: count }, () => {
      const socket = connect({ host: HOST, port, localAddress: from });
      sockets.push(socket);
      socket.on('error', () => undefined).on('data', () => undefined);
      if (first !== '') socket.write(first);
      return socket;
    });
    await until('all have connected, or were refused', () => all.every((each) => !each.connecting), {
      timeout_ms: 30_000,
    });
    return () => all.filter((each) => !each.destroyed && !each.readableEnded).length;
  }

  const filesOpen = () => readdirSync(`/proc/${role.pid}/fd`).length;
  const works = async (from = HOST) => {
    const { status, said } = await get('/readyz', from);
    assert.match(said, /"database":\{"ok":true/, said);
    assert.ok(status === 200 || status === 503, 'without a host it is not ready');
  };

  test('of one address end beyond its bound, and it is served all the same', async () => {
    const [stranger = ''] = STRANGERS;
    const open = await hold(stranger, 300);
    await until('the oldest were ended', () => open() <= 40);
    await works(stranger);
    await works();
  });

  test('of several addresses leave files for the database, and let others in', async () => {
    for (const each of STRANGERS) await hold(each, 100);
    await untilWorks('the database and the rest have theirs', async () => {
      assert.ok(filesOpen() < OPEN_FILES * 0.75, `${filesOpen()} of ${OPEN_FILES} are open`);
    });
    // More queries at a time than the pool had connections.
    await Promise.all(Array.from({ length: 12 }, () => works()));
  });

  test('come to one address, also of localhost', async () => {
    const socket = connect({ host: '::1', port });
    await assert.rejects(once(socket, 'connect'), { code: /ECONNREFUSED|EADDRNOTAVAIL/ });
  });

  test('with half a request count as idle', async () => {
    for (const each of STRANGERS) await hold(each, 100, 'GET /healthz HTTP/1.1\r\nHost: 127');
    await works();
  });

  test('of a trusted proxy may be more than an address may have', async () => {
    for (const each of sockets) each.destroy();
    const open = await hold(A_PROXY, 50);
    await works(A_PROXY);
    assert.equal(open(), 50);
  });
});

describe('the listener for hosts', async () => {
  const api = await apiForFile();
  const connections = new ConnectionBudget({ most: 12, per_source: 6 });
  const far = await listenToRemoteHosts(api, { connections });
  const { token } = await far.join('far', { cpus: '4', memory: '4096' });
  const { hostname, port } = new URL(far.origin);

  /** A connection of the host, which stays open; `ask` gives the status of the answer. */
  async function ofHost() {
    const socket = connectTls({
      host: hostname,
      port: Number(port),
      ca: far.cert,
      checkServerIdentity: () => undefined,
    });
    after(() => void socket.destroy());
    socket.on('error', () => undefined);
    await once(socket, 'secureConnect');
    const ask = async (path: string, ...fields: string[]) => {
      const head = [
        `POST ${path} HTTP/1.1`,
        `Host: ${hostname}`,
        `Authorization: Bearer ${token}`,
        `${PROTOCOL_HEADER}: ${AGENT_PROTOCOL}`,
        ...fields,
      ];
      socket.write(`${head.join('\r\n')}\r\nContent-Length: 0\r\n\r\n`);
      const ended = once(socket, 'close').then(() => assert.fail(`${path}: the connection ended`));
      const [answer] = await Promise.race([once(socket, 'data'), ended]);
      return Number(/^HTTP\/1.1 ([0-9]{3}) /.exec(String(answer))?.[1]);
    };
    return { socket, ask };
  }
  const stream = ['Connection: Upgrade', 'Upgrade: berth-console'];

  test('keeps those of a host when its address has as many idle ones as it may have, and when streams have their share', async () => {
    const lease = await ofHost();
    assert.equal(await lease.ask('/internal/v1/lease'), 400);
    const strangers = Array.from({ length: 40 }, () => {
      const socket = connect({ host: hostname, port: Number(port) });
      after(() => void socket.destroy());
      return socket.on('error', () => undefined).on('data', () => undefined);
    });
    await until('all but six were ended', () => strangers.filter(({ destroyed }) => !destroyed).length <= 6);
    assert.equal(await lease.ask('/internal/v1/lease'), 400, 'its connection is there');

    assert.equal(await (await ofHost()).ask('/internal/v1/calls/x/stream', ...stream), 404);
    for (let count = 1; count < 9; count++)
      assert.equal(await (await ofHost()).ask('/internal/v1/lease'), 400);
    assert.equal(await (await ofHost()).ask('/internal/v1/calls/x/stream', ...stream), 503);
    assert.equal(await (await ofHost()).ask('/internal/v1/lease'), 400);
  });
});
