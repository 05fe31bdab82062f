/** Connections to the API that nobody uses, in the control plane's own process with a low limit of open files. */
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
import { startDatabase, type TestDatabase } from '../support/database.ts';
import { ownPort } from '../support/own-ports.ts';
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
          BERTH_LISTEN: `${HOST}:${port}`,
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
