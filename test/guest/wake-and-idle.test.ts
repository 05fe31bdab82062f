/** A VM that starts when somebody connects and stops when it is idle, with real ssh. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { installServer, startServerAtBoot } from '../support/guest-http-server.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import type { SshBody } from '../support/rest-client.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const run = promisify(execFile);
const IDLE_S = 60;

describe('wake and idle stop', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let details: SshBody;

  before(async () => {
    berth = await borrowInstallation();
    guest = await GuestInstance.running(berth, 'sleeper');
    details = guest.target;
  });
  after(returnInstallation);

  const change = (body: object) => berth.client.expect(200, 'PATCH', guest.path, body);
  /** How a plain connection ends: with what was heard until then. */
  const knock = async () => {
    const socket = connect({ host: details.host, port: details.port });
    const parts: Buffer[] = [];
    socket.on('data', (part: Buffer) => parts.push(part)).on('error', () => undefined);
    await once(socket, 'close');
    return Buffer.concat(parts).toString('latin1');
  };

  const lastUsed = async () => {
    const path = '/v1/me/ssh-keys';
    const { data } = await berth.client.expect<{ data: { last_used_at: string | null }[] }>(200, 'GET', path);
    assert.equal(data.length, 1);
    return data[0]?.last_used_at ?? null;
  };

  test('without wake, the port of a stopped VM closes each connection at once', async () => {
    await guest.stop();
    assert.equal(await knock(), '');
    assert.equal((await guest.vm()).state, 'stopped');
    assert.equal(await lastUsed(), null);
  });

  test('with wake, one ssh starts the VM and waits for it', async () => {
    await change({ wake_on_connect: true });
    const options = ['ConnectTimeout=110'];
    const first = await berth.ssh.run(guest.target, 'hostname', { options });
    assert.equal(first.stdout, 'sleeper\n', first.stderr);
    const vm = await guest.reached('running');
    assert.deepEqual([vm.boot, vm.reason?.code], [2, 'ready']);
  });

  test('a connection to a stopping VM waits for the next boot, and counts as a use of its key', async () => {
    await berth.client.expect(202, 'DELETE', `${guest.path}/vm`);
    // Told before the guest goes down, at the latest.
    await until('the key is shown as used', async () => (await lastUsed()) !== null);
    const options = ['ConnectTimeout=110'];
    const next = await berth.ssh.run(guest.target, 'hostname', { options });
    assert.equal(next.stdout, 'sleeper\n', next.stderr);
    assert.equal((await guest.vm()).boot, 3);
  });

  test(
    'an open connection or an absent control plane keeps the VM running; then it stops by itself',
    THOROUGH,
    async () => {
      await change({ idle_timeout_seconds: IDLE_S });
      const open = await berth.ssh.run(
        guest.target,
        `echo kept > /srv/kept; sleep ${IDLE_S + 10}; echo awake`,
      );
      assert.equal(open.stdout, 'awake\n', open.stderr);
      await berth.kill('control-plane');
      await berth.recovered('control-plane');
      assert.equal((await guest.vm()).state, 'running');
      const vm = await guest.becomes('stopped by itself', ({ state }) => state === 'stopped', 240_000);
      assert.deepEqual([vm.reason?.code, vm.reason?.actor, vm.disk.dirty_bytes], ['idle', 'system', 0]);
    },
  );

  test('data is there after the next wake', THOROUGH, async () => {
    await berth.removeOverlays(guest.id);
    const options = ['ConnectTimeout=110'];
    const back = await berth.ssh.run(guest.target, 'cat /srv/kept', { options });
    assert.equal(back.stdout, 'kept\n', back.stderr);
  });

  test('HTTP requests keep the VM running; once the last is long ago, it stops', THOROUGH, async () => {
    await installServer(guest);
    await startServerAtBoot(guest);
    const body = { port: 8080, access: 'public' };
    const { hostname } = await berth.client.expect<{ hostname: string }>(
      201,
      'POST',
      `${guest.path}/ports`,
      body,
    );
    // Ends the connections by ssh, which are a use too.
    await guest.stop();
    const url = `http://${hostname}:${berth.http_port}/used`;
    const used = async () => (await run('curl', ['-sS', '-m', '120', url])).stdout;
    assert.equal(await used(), 'used 0\n');
    const { boot } = await guest.reached('running');
    const until_ms = performance.now() + 1_000 * (IDLE_S + 20);
    const longer = async () => (await used()) === 'used 0\n' && performance.now() > until_ms;
    await until('it was used for longer than the timeout', longer, { every_ms: 10_000 });
    const vm = await guest.vm();
    assert.deepEqual([vm.state, vm.boot], ['running', boot]);
    const idle = await guest.becomes('stopped by itself', ({ state }) => state === 'stopped', 240_000);
    assert.deepEqual([idle.reason?.code, idle.boot], ['idle', boot]);
  });
});
