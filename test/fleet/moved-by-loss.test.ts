/** Two hosts with real guests: one is lost while it runs a VM, the VM continues on the other, and the first comes back. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import {
  isProcessAlive,
  isStopped,
  killProcess,
  type ProcessIdentity,
} from '../../src/host/qemu/qemu-process.ts';
import { Cli } from '../support/cli.ts';
import { installServer, startServer } from '../support/guest-http-server.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { ownPort } from '../support/own-ports.ts';
import { RemoteHost } from '../support/remote-host.ts';
import type { ReceiptBody } from '../support/rest-client.ts';
import { bucketSettings, S3Server } from '../support/s3-server.ts';
import { thorough } from '../support/thorough.ts';
import { until, untilWorks } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');
/** Short, and long enough for a busy machine. */
const LEASE_SECONDS = '12';
const PATIENCE = { timeout_ms: 120_000, every_ms: 100 };

/** The body and the status. */
async function curl(port: number, hostname: string, more: readonly string[]): Promise<string> {
  const words = ['-sS', '-m', '60', '-w', ' %{http_code}', ...more, `http://${hostname}:${port}/`];
  return (await promisify(execFile)('curl', words)).stdout;
}

describe('a host is lost', { skip: CANNOT_BOOT_GUESTS, ...THOROUGH, timeout: 600_000 }, () => {
  let server: S3Server;
  let berth: Installation;
  let far: RemoteHost;
  let guest: GuestInstance;
  let receipt: ReceiptBody;
  let settings: Record<string, string>;
  let qemu: ProcessIdentity;

  const onServer = (...args: string[]): Promise<string> =>
    new Promise((resolve, reject) => {
      const env = { PATH: process.env['PATH'] ?? '', ...settings, BERTH_DATA_DIR: berth.data_dir };
      execFile(BERTH, args, { env }, (error, out, err) => (error ? reject(new Error(err)) : resolve(out)));
    });

  before(async () => {
    server = await S3Server.start();
    const store = { ...bucketSettings(await server.bucket()), BERTH_ACCEL: 'tcg' };
    const hosts_listen = `127.0.0.1:${await ownPort()}`;
    settings = { ...store, BERTH_HOSTS_LISTEN: hosts_listen, BERTH_HOST_LEASE_SECONDS: LEASE_SECONDS };
    berth = await Installation.start({ settings });
    far = await RemoteHost.start(
      `https://${hosts_listen}`,
      await onServer('host', 'add', 'far', '--cpus', '8', '--memory', '64'),
      { BERTH_ACCEL: 'tcg' },
    );
    await onServer('host', 'cordon', 'local');
    guest = await GuestInstance.create(berth, 'wanderer', {
      egress: { mode: 'allow', allow: ['allowed.example'] },
    });
    await untilWorks('the far host takes it', () => guest.start(), PATIENCE);
  });
  after(async () => {
    await far?.dispose();
    await berth?.dispose();
    await server?.close();
  });

  test('a VM on another machine is reached through its port and its agent', async () => {
    await guest.learnHost();
    qemu = far.qemu(guest.id);
    assert.equal(await guest.sh('hostname'), 'wanderer');
    const hash = createHash('sha256')
      .update(Buffer.alloc(4 * 2 ** 20))
      .digest('hex');
    assert.equal(await guest.sh('head -c 4M /dev/zero | sha256sum'), `${hash}  -`);
    await guest.sh('echo covered > /srv/before; head -c 2M /dev/urandom > /srv/data; sync');
    receipt = await guest.flush();
    await guest.sh('echo later > /srv/after; sync');
    await until('the far lease is kept', () => existsSync(far.paths.lease));
  });

  test('its HTTP ports answer through the tunnel, whole and private, and a port where nothing listens is 502', async () => {
    await installServer(guest);
    const publish = async (access: string) => {
      const body = { port: 8080, access };
      const made = await berth.client.expect<{ hostname: string }>(201, 'POST', `${guest.path}/ports`, body);
      return (...more: string[]) => curl(berth.http_port, made.hostname, more);
    };
    const [open, closed] = [await publish('public'), await publish('private')];
    assert.match(await open(), /Nothing listens on port 8080 .* 502$/s);
    await startServer(guest);
    await until('it listens', async () => (await open()) === ' 0\n 200');
    const body = join(far.paths.data, 'body');
    writeFileSync(body, randomBytes(3_000_000));
    await Promise.all(
      [1, 2, 3, 4].map(async (at) => {
        const got = `${body}-${at}`;
        assert.equal(await open('-T', body, '-o', got), ' 200');
        assert.ok(readFileSync(got).equals(readFileSync(body)));
      }),
    );
    assert.match(await closed(), / 401$/);
  });

  test('berth forward reaches its ports', async () => {
    const made = { name: 'forward', scope: 'instances:read vm:write' };
    const { key } = await berth.client.expect<{ key: string }>(201, 'POST', '/v1/api-keys', made);
    const cli = new Cli();
    Object.assign(cli.env, { BERTH_URL: berth.origin, BERTH_API_KEY: key });
    const forwarding = cli.start(['forward', 'wanderer', '8080:0', '-q']);
    await until('it listens here', () => /^127\.0\.0\.1:\d+\n/.test(forwarding.out()));
    const port = Number(forwarding.out().trim().split(':')[1]);
    assert.equal(await curl(port, 'any.localhost', ['-d', 'forwarded']), ' 9\n 200');
    forwarding.child.kill('SIGINT');
    await forwarding.ended;
  });

  test('the VM of a silent agent is paused before it fails', async () => {
    killProcess(far.agent, 'SIGSTOP');
    const given_up = guest.becomes('failed', ({ state }) => state === 'failed');
    await until('the fencer has paused it', () => isStopped(qemu), PATIENCE);
    assert.equal((await guest.vm()).state, 'running', 'nobody has said yet that it is over');
    const vm = await given_up;
    assert.equal(vm.reason?.code, 'host_lost');
    assert(isStopped(qemu));
  });

  test('it starts on the other host from its last durable generation, with the same port and host key, and reason recovered', async () => {
    await onServer('host', 'uncordon', 'local');
    const before = guest.target;
    const vm = await guest.start();
    assert.equal(vm.reason?.code, 'recovered');
    assert.match(vm.reason?.message ?? '', new RegExp(`generation ${receipt.generation}\\b`));
    // Known from before: ssh would refuse another key.
    assert.equal(await guest.shAgain('cat /srv/before'), 'covered');
    assert.equal(await guest.sh('wc -c < /srv/data'), String(2 * 2 ** 20));
    assert.equal(await guest.sh('cat /srv/after 2> /dev/null || echo lost'), 'lost');
    const { port, host_keys } = await guest.sshDetails();
    assert.deepEqual([port, host_keys], [before.port, before.host_keys]);
    await until('the new host enforces the egress policy', async () => {
      await guest.sh('getent hosts denied.example || true');
      const { data } = await berth.client.expect<{ data: { name?: string }[] }>(
        200,
        'GET',
        `${guest.path}/vm/egress/denied`,
      );
      return data.some(({ name }) => name === 'denied.example');
    });
    await guest.sh('echo here > /srv/here; sync');
    assert((await guest.flush()).generation > receipt.generation);
  });

  test('a lost host that comes back ends its VM, and its later writes are discarded', async () => {
    const { generation } = (await guest.vm()).disk;
    killProcess(far.agent, 'SIGCONT');
    await until('the stale VM has ended', () => !isProcessAlive(qemu), PATIENCE);
    assert.match(far.output, /the lease could not be renewed in time|the lease is renewed/);
    assert.equal((await guest.vm()).state, 'running');
    assert.equal(await guest.sh('cat /srv/here; cat /srv/after 2> /dev/null || echo lost'), 'here\nlost');
    assert.equal((await guest.vm()).disk.generation, generation);
    await guest.stop();
    assert.match(await onServer('host', 'ls'), /far +up +0/);
  });

  test('an exec goes on when its VM is suspended and resumes on another host, and its exit is reported from there', async () => {
    interface Exec {
      readonly id: string;
      readonly state: string;
      readonly exit_code: number | null;
      readonly output_bytes: number;
    }
    await onServer('host', 'cordon', 'far');
    await guest.start();
    const command = [
      'sh',
      '-c',
      'n=0; until [ -e /run/over ]; do n=$((n+1)); echo $n; sleep 0.2; done; exit 4',
    ];
    const execs = `${guest.path}/execs`;
    const { id } = await berth.client.expect<Exec>(201, 'POST', execs, { command });
    const show = () => berth.client.expect<Exec>(200, 'GET', `${execs}/${id}`);
    await until('it prints', async () => (await show()).output_bytes > 0);
    const { host_id } = await guest.suspend();
    await onServer('host', 'cordon', 'local');
    await onServer('host', 'uncordon', 'far');
    await untilWorks('the far host takes it', () => guest.start(), PATIENCE);
    const vm = await guest.vm();
    assert.equal(vm.reason?.code, 'resumed');
    assert.notEqual(vm.host_id, host_id);
    await guest.shAgain('touch /run/over');
    const { exit_code, output_bytes } = await until('it has ended', async () => {
      const now = await show();
      return now.state !== 'running' && now;
    });
    assert.equal(exit_code, 4);
    const output = await berth.client.expect<string>(200, 'GET', `${execs}/${id}/output`);
    const last = Number(output.trim().split('\n').at(-1));
    const all = Array.from({ length: last }, (_, n) => `${n + 1}\n`).join('');
    assert.ok(all.endsWith(output), 'its kept output has no gap');
    assert.equal(output_bytes, all.length);
  });
});
