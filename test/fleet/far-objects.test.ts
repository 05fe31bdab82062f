/** A real guest on a host that has no credentials for the bucket: flush, suspend and resume, and a start without the local disk. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import type { S3Settings } from '../../src/object-store/s3-store.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { ownPort } from '../support/own-ports.ts';
import { processesOfFolder } from '../support/processes.ts';
import { RemoteHost } from '../support/remote-host.ts';
import { bucketSettings, S3Server } from '../support/s3-server.ts';
import { ToxicProxy } from '../support/toxic-proxy.ts';
import { untilWorks } from '../support/waiting.ts';

const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');
const MIB = 2 ** 20;
const HASH = 'sha256sum /srv/* | sha256sum';

describe('a host without credentials for the bucket', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  let server: S3Server;
  let proxy: ToxicProxy;
  let bucket: S3Settings;
  let berth: Installation;
  let far: RemoteHost;
  let guest: GuestInstance;

  before(async () => {
    server = await S3Server.start();
    proxy = await ToxicProxy.open(server.port);
    bucket = await server.bucket(proxy.endpoint);
    const listen = `127.0.0.1:${await ownPort()}`;
    const settings = { ...bucketSettings(bucket), BERTH_ACCEL: 'tcg', BERTH_HOSTS_LISTEN: listen };
    berth = await Installation.start({ settings });
    const env = { PATH: process.env['PATH'] ?? '', ...settings, BERTH_DATA_DIR: berth.data_dir };
    const onServer = async (...args: string[]) => (await promisify(execFile)(BERTH, args, { env })).stdout;
    const token = await onServer('host', 'add', 'far', '--cpus', '8', '--memory', '64');
    far = await RemoteHost.start(`https://${listen}`, token, { BERTH_ACCEL: 'tcg' });
    await onServer('host', 'drain', 'local');
    guest = await GuestInstance.create(berth, 'far-objects');
    await untilWorks('the far host takes it', () => guest.start(), { timeout_ms: 120_000, every_ms: 200 });
  });
  after(async () => {
    await far?.dispose();
    await berth?.dispose();
    await proxy?.cut();
    await server?.close();
  });

  test('flushes, and neither its processes nor its folder have a credential', async () => {
    await guest.learnHost();
    proxy.heal();
    await guest.sh('head -c 24M /dev/urandom > /srv/first; sync');
    // An automatic flush may have taken a part of it.
    await guest.flush();
    const written = proxy.seen.filter(({ method, path }) => method === 'PUT' && path.includes('/disks/'));
    const bytes = written.reduce((sum, { headers }) => sum + Number(headers['content-length']), 0);
    assert(bytes >= 24 * MIB, `${bytes} bytes`);
    for (const { headers } of written) assert.equal(headers['if-none-match'], '*');
    const secret = bucket.secret_access_key ?? assert.fail();
    assert(processesOfFolder(far.paths.data).length >= 2);
    for (const { pid } of processesOfFolder(far.paths.data)) {
      const environment = readFileSync(`/proc/${pid}/environ`, 'latin1');
      assert(!environment.includes(secret) && !environment.includes('BERTH_S3_'), environment);
    }
    assert(!far.output.includes(secret));
  });

  test('suspends and resumes with its memory in the bucket', async () => {
    await guest.sh('nohup sleep 100000 > /dev/null 2>&1 & echo $! > /run/pid');
    await guest.suspend();
    const vm = await guest.start();
    assert.equal(vm.reason?.code, 'resumed');
    assert.equal(await guest.shAgain('kill -0 $(cat /run/pid) && echo lives'), 'lives');
  });

  test('starts without its local disk, and reads all of it from the bucket', async () => {
    const hashes = await guest.sh(HASH);
    await guest.stop();
    for (const name of readdirSync(far.paths.overlays))
      if (name.startsWith(guest.id)) rmSync(join(far.paths.overlays, name));
    proxy.heal();
    await guest.start();
    assert.equal(await guest.shAgain(HASH), hashes);
    const read = proxy.seen.filter(({ method, path }) => method === 'GET' && path.includes('/disks/'));
    assert(read.length > 0);
  });

  test('while the store is away a flush gets 503 and loses nothing', async () => {
    await guest.sh('head -c 8M /dev/urandom > /srv/second; sync');
    proxy.poison(({ method, path }) => {
      if (method !== 'PUT' || !path.includes('/disks/')) return undefined;
      void proxy.cut();
      return { cut_request_at: 1_000 };
    });
    const refused = await berth.client.request('POST', `${guest.path}/vm/flush`);
    assert.equal(refused.status, 503);
    proxy.heal();
    await proxy.mend();
    const { dirty_bytes } = await untilWorks('a flush', () => guest.flush(), { every_ms: 200 });
    assert(dirty_bytes >= 8 * MIB);
  });

  test('asks for nothing that it may not have', () => {
    const refused = berth.output.split('\n').filter((line) => line.includes('a host may not use an object'));
    assert.deepEqual(refused, []);
  });
});
