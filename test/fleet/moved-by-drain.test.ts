/** Two hosts with real guests: a drain moves a running VM from one to the other, with its memory, and back from its disk. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { isProcessAlive } from '../../src/host/qemu/qemu-process.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { ownPort } from '../support/own-ports.ts';
import { RemoteHost } from '../support/remote-host.ts';
import { bucketSettings, S3Server } from '../support/s3-server.ts';
import { thorough } from '../support/thorough.ts';
import { until, untilWorks } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');
const PATIENCE = { timeout_ms: 120_000, every_ms: 100 };
/** It counts in its memory alone: a boot would begin at 1 again. */
const COUNTER =
  'nohup sh -c "n=0; while :; do n=\\$((n+1)); echo \\$n > /run/count; sleep 0.2; done" > /dev/null 2>&1 & echo $! > /run/counter';

/** What a server says first to a new connection. */
async function greeting(port: number): Promise<string> {
  const socket = connect({ host: '127.0.0.1', port });
  socket.once('end', () => socket.destroy(new Error('the connection ended without a greeting')));
  try {
    // The ingress takes part of a client's words before it waits.
    socket.write('SSH-2.0-test\r\n');
    const [first] = (await once(socket, 'data', { signal: AbortSignal.timeout(PATIENCE.timeout_ms) })) as [
      Buffer,
    ];
    return String(first);
  } finally {
    socket.destroy();
  }
}

describe('a host is drained', { skip: CANNOT_BOOT_GUESTS, ...THOROUGH, timeout: 600_000 }, () => {
  let server: S3Server;
  let berth: Installation;
  let far: RemoteHost;
  let guest: GuestInstance;
  let settings: Record<string, string>;

  const onServer = (...args: string[]): Promise<string> =>
    new Promise((resolve, reject) => {
      const env = { PATH: process.env['PATH'] ?? '', ...settings, BERTH_DATA_DIR: berth.data_dir };
      execFile(BERTH, args, { env }, (error, out, err) => (error ? reject(new Error(err)) : resolve(out)));
    });
  const count = async () => Number(await guest.shAgain('cat /run/count'));

  before(async () => {
    server = await S3Server.start();
    const accelerator = { BERTH_ACCEL: 'tcg' };
    const store = { ...bucketSettings(await server.bucket()), ...accelerator };
    const hosts_listen = `127.0.0.1:${await ownPort()}`;
    settings = { ...store, BERTH_HOSTS_LISTEN: hosts_listen };
    berth = await Installation.start({ settings });
    const token = await onServer('host', 'add', 'far', '--cpus', '8', '--memory', '64');
    far = await RemoteHost.start(`https://${hosts_listen}`, token, accelerator);
    await untilWorks(
      'the far host is up',
      async () => assert.match(await onServer('host', 'ls'), /far +up/),
      PATIENCE,
    );
    await onServer('host', 'cordon', 'far');
    guest = await GuestInstance.running(berth, 'mover');
    await onServer('host', 'uncordon', 'far');
  });
  after(async () => {
    await far?.dispose();
    await berth?.dispose();
    await server?.close();
  });

  test('its running VM continues on the other one: the same process, memory, port and host key', async (t) => {
    const before = { ...(await guest.vm()), ssh: await guest.sshDetails(), qemu: guest.qemu };
    await guest.sh(COUNTER);
    await guest.sh('echo secret > /run/in-memory; echo written > /srv/unflushed');
    const pid = await guest.sh('cat /run/counter');
    await until('it counts', async () => Number(await guest.sh('cat /run/count')) > 20);
    const counted = Number(await guest.sh('cat /run/count'));
    const began = performance.now();
    assert.match(await onServer('host', 'drain', 'local'), /its 1 VM move to other hosts/);
    // A connection of the moment before may still reach the guest here, and ends with it.
    const has_left = async () => !['running', 'suspending'].includes((await guest.vm()).state);
    await until('it has left', has_left, PATIENCE);
    const greeted = greeting(before.ssh.port);
    const there = await guest.becomes(
      'running elsewhere',
      ({ state, host_id }) => state === 'running' && host_id !== before.host_id,
      PATIENCE.timeout_ms,
    );
    t.diagnostic(`moved within ${Math.round(performance.now() - began)} ms`);
    assert.equal(there.reason?.code, 'resumed');
    assert.match(await greeted, /^SSH-2\.0-/, 'a connection of meanwhile has waited');
    assert.equal(await guest.shAgain('cat /run/in-memory /srv/unflushed'), 'secret\nwritten');
    assert.equal(
      await guest.shAgain('cat /run/counter; kill -0 $(cat /run/counter) && echo lives'),
      `${pid}\nlives`,
    );
    assert.ok((await count()) >= counted, 'it counts on');
    const last = await count();
    await until('it runs', async () => (await count()) > last);
    const { port, host_keys } = await guest.sshDetails();
    assert.deepEqual([port, host_keys], [before.ssh.port, before.ssh.host_keys]);
    assert.ok(!isProcessAlive(before.qemu));
    assert.ok(isProcessAlive(far.qemu(guest.id)));
    assert.match(
      await onServer('host', 'show', 'local'),
      /state +drained[\s\S]*local is drained: 1 of 1 VM moved/,
    );
  });

  test('a move goes on when the control plane is killed on the way', async () => {
    const last = await count();
    await onServer('host', 'uncordon', 'local');
    await onServer('host', 'drain', 'far');
    await until('the move has begun', async () => (await guest.vm()).state !== 'running', PATIENCE);
    await berth.kill('control-plane');
    await berth.recovered('control-plane');
    const back = await guest.becomes(
      'running on the first host again',
      ({ state, boot }) => state === 'running' && boot === 3,
      PATIENCE.timeout_ms,
    );
    assert.equal(back.reason?.code, 'resumed');
    assert.ok((await count()) >= last);
    await onServer('host', 'uncordon', 'far');
  });
});
