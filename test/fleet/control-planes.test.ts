/** Several control planes on one database: each serves every host, whichever it is connected to, and any may be killed. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { WebSocket } from 'ws';
import { migrate } from '../../src/control-plane/db/migrate.ts';
import { openPool } from '../../src/control-plane/db/pool.ts';
import { claimRootKey } from '../../src/control-plane/fleet/root-key.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import type { SimulatedHost } from '../simulated-host/simulated-host.ts';
import { Balancer, type ControlPlaneProcess, FleetLab, untilKnown } from '../support/fleet-lab.ts';
import { CANNOT_BOOT_GUESTS } from '../support/installation.ts';
import { RecordedCommands } from '../support/recorded-commands.ts';
import { RemoteHost } from '../support/remote-host.ts';
import type { Answer } from '../support/rest-client.ts';
import { SteadyLoad } from '../support/steady-load.ts';
import { until } from '../support/waiting.ts';

interface Ran {
  readonly stdout: string;
  readonly error?: { readonly code: string; readonly message: string };
}

const CALLS = 20;
const AS_ROOT = { skip: CANNOT_BOOT_GUESTS };

/** 200, or why not. */
const saying = ({ status, body }: Answer<Ran>) => body.error?.message ?? status;

describe('two control planes', { timeout: 600_000 }, () => {
  let lab: FleetLab;
  let a: ControlPlaneProcess;
  let b: ControlPlaneProcess;
  let host: SimulatedHost;
  const commands = new RecordedCommands();
  let id: InstanceId;

  const exec = (at: ControlPlaneProcess, command: string, of: InstanceId = id): Promise<Answer<Ran>> =>
    at.client.request<Ran>('POST', `/v1/instances/${of}/vm/exec`, { command: [command] });

  /** The text that comes back from a stream of the API, through the host. */
  async function echoed(at: ControlPlaneProcess, path: string, text: string): Promise<string> {
    const headers = { authorization: `Bearer ${at.client.token}` };
    const socket = new WebSocket(`ws://127.0.0.1:${at.port}/v1/instances/${id}/vm/${path}`, { headers });
    let got = '';
    socket.on('message', (data) => {
      got += String(data);
    });
    await once(socket, 'open');
    socket.send(Buffer.from(text));
    await until('it comes back', () => got.length >= text.length);
    const closed = once(socket, 'close');
    socket.close();
    await closed;
    return got;
  }

  before(async () => {
    lab = await FleetLab.start();
    a = await lab.controlPlane();
    b = await lab.controlPlane();
    host = await lab.host('rack-1', a.hosts_port, commands);
    await untilKnown(host, 2);
    id = await lab.running(a, 'first');
  });
  after(() => lab?.dispose());

  test('a host learns of all of them by its heartbeat', () => {
    assert.equal(host.client.control_planes, 2);
  });

  test('commands, console, metrics and ports work at the one that the host is not connected to', async () => {
    for (const at of [a, b]) {
      const { status, body } = await exec(at, `at ${at.port}`);
      assert.deepEqual([status, body.stdout], [200, `ran at ${at.port}`]);
      const log = await at.client.request<string>('GET', `/v1/instances/${id}/vm/console`);
      assert.equal(log.status, 200, at.output());
      const metrics = await at.client.request('GET', `/v1/instances/${id}/vm/metrics`);
      assert.equal(metrics.status, 200);
      assert.equal(await echoed(at, 'forward?port=7', 'through the guest'), 'through the guest');
      const { ticket } = await at.client.expect<{ ticket: string }>(
        201,
        'POST',
        `/v1/instances/${id}/vm/console/ticket`,
      );
      assert.equal(await echoed(at, `console/stream?ticket=${ticket}`, 'line'), 'line');
    }
  });

  test('each of many calls at both is run once', async () => {
    const from = commands.ran.length;
    const answers = await Promise.all(
      Array.from({ length: CALLS }, (_, n) => exec(n % 2 === 0 ? a : b, `once ${n}`)),
    );
    assert.deepEqual(answers.map(saying), Array(CALLS).fill(200));
    const ran = commands.ran.slice(from);
    assert.equal(ran.length, CALLS);
    assert.equal(new Set(ran).size, CALLS);
  });

  test('a host that reaches them by a balancer serves both', async (t) => {
    const balancer = await Balancer.open([a.hosts_port, b.hosts_port]);
    t.after(() => balancer.close());
    const other = new RecordedCommands();
    await lab.host('rack-2', balancer.port, other);
    await lab.database.db.updateTable('hosts').set({ cordoned: true }).where('name', '=', 'rack-1').execute();
    const there = await lab.running(a, 'second');
    await lab.database.db.updateTable('hosts').set({ cordoned: false }).execute();
    const answers = await Promise.all(
      Array.from({ length: CALLS }, (_, n) => exec(n % 2 === 0 ? a : b, `balanced ${n}`, there)),
    );
    assert.deepEqual(answers.map(saying), Array(CALLS).fill(200));
    assert.equal(other.ran.length, CALLS);
    assert.deepEqual([...balancer.passed.keys()].sort(), [a.hosts_port, b.hosts_port].sort());
  });

  test('one is killed while calls run through it: each caller retries at most once, and no call runs twice', async () => {
    const answer = commands.hold('slow');
    const from = commands.ran.length;
    // The host is connected to a. These callers are at b.
    const slow = Array.from({ length: CALLS }, (_, n) => exec(b, `slow ${n}`));
    await until('the host has them all', () => commands.ran.length - from === CALLS);
    await a.kill();
    answer();
    const first = await Promise.all(slow);
    // The host gives its answers to the other one.
    assert.deepEqual(first.map(saying), Array(CALLS).fill(200));
    const retried = await exec(b, 'after the kill');
    assert.equal(retried.status, 200, retried.body.error?.message);
    const ran = commands.ran.slice(from);
    assert.equal(new Set(ran).size, ran.length);
  });

  test('another one, started later, serves the host at once', async () => {
    const c = await lab.controlPlane();
    await untilKnown(host, 3);
    const { status, body } = await exec(c, 'at a new one');
    assert.deepEqual([status, body.stdout], [200, 'ran at a new one']);
    await c.kill();
  });

  test('when one is killed, its callers repeat a request at most once at the other, and nothing accepted is lost', async () => {
    const c = await lab.controlPlane();
    const load = new SteadyLoad(
      [b, c].map(({ port }) => `http://127.0.0.1:${port}`),
      b.client.token,
    );
    await load.goesOn();
    await c.kill();
    await load.goesOn();
    await load.end();
    assert.equal(load.most_repeats, 1, load.repeats.join('\n'));
    await load.requireKept(b.client);
  });

  test(
    'an agent keeps the list of control planes, and its lease when the one it was given is killed',
    AS_ROOT,
    async (t) => {
      const c = await lab.controlPlane();
      await untilKnown(host, 3);
      const real = await RemoteHost.start(`https://127.0.0.1:${c.hosts_port}`, await lab.token('rack-3'), {
        BERTH_ACCEL: 'tcg',
      });
      t.after(() => real.dispose());
      const row = () =>
        lab.database.db
          .selectFrom('hosts')
          .select(['beat', 'lease_ms', 'last_seen_at'])
          .where('name', '=', 'rack-3')
          .executeTakeFirstOrThrow();
      const kept = () => readFile(real.paths.control_planes, 'utf8').catch(() => '');
      await until('it knows the other', async () => (await kept()).includes(String(b.hosts_port)));
      await until('it has a lease', async () => (await row()).lease_ms !== null);
      await c.kill();
      const { beat } = await row();
      await until('it renews its lease at the other', async () => (await row()).beat > beat + 1);
      assert(!existsSync(real.paths.fenced), 'no VM was paused');
    },
  );

  test('its launcher runs it alone: no host is added, no PostgreSQL and no agent start', async () => {
    const settings = await lab.settings();
    const { child, output } = lab.run(settings, 'start', 'control-plane');
    await until('it is ready', () => {
      assert.equal(child.exitCode, null, output());
      return output().includes('berth ready at');
    });
    const data = settings['BERTH_DATA_DIR'] ?? '';
    assert.deepEqual(await readdir(join(data, 'secrets')), []);
    assert.deepEqual(await readdir(join(data, 'images', 'debian-12')), []);
    const hosts = await lab.database.db.selectFrom('hosts').select('name').execute();
    assert(!hosts.some(({ name }) => name === 'local'));
    const ended = once(child, 'exit');
    child.kill('SIGTERM');
    assert.deepEqual(await ended, [0, null], output());
    const left = await lab.database.db.selectFrom('control_planes').select('url').execute();
    assert(
      !left.some(({ url }) => url.endsWith(settings['BERTH_HOSTS_LISTEN'] ?? '')),
      'it has left the list',
    );
  });

  test('one with another secret key is refused, also where nothing is stored yet', async () => {
    const url = await lab.database.createEmpty('young');
    await migrate(url);
    const db = openPool(url, () => undefined);
    await claimRootKey(db, randomBytes(32));
    await db.destroy();
    const settings = { ...(await lab.settings()), DATABASE_URL: url };
    const { child, output } = lab.run(settings, 'start', 'control-plane');
    const [code] = await once(child, 'exit');
    assert.equal(code, 2, output());
    assert.match(output(), /BERTH_SECRET_KEY: is not the key of this database; set the right one/);
  });
});
