/** An installation with a bucket of a real S3 server as its object store: a guest's data survives, and S3 may be away. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { overlayPaths } from '../../src/host/disk/overlay-files.ts';
import { type S3Settings, S3Store } from '../../src/object-store/s3-store.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { ErrorBody } from '../support/rest-client.ts';
import { bucketSettings, S3Server } from '../support/s3-server.ts';
import { ToxicProxy } from '../support/toxic-proxy.ts';
import { until, untilWorks } from '../support/waiting.ts';

const MIB = 2 ** 20;
const HASH = 'sha256sum /srv/* | sha256sum';

describe('an installation on S3', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  let server: S3Server;
  let proxy: ToxicProxy;
  let bucket: S3Settings;
  let berth: Installation;
  let guest: GuestInstance;

  before(async () => {
    server = await S3Server.start();
    proxy = await ToxicProxy.open(server.port);
    bucket = await server.bucket(proxy.endpoint);
    berth = await Installation.start({ settings: bucketSettings(bucket) });
    guest = await GuestInstance.running(berth, 'in-s3');
  });
  after(async () => {
    await berth?.dispose();
    await proxy?.cut();
    await server?.close();
  });

  /** The way breaks in the middle of the next segment. */
  const cutInTheNextSegment = (): void =>
    proxy.poison(({ method, path }) => {
      if (method !== 'PUT' || !path.includes('/disks/')) return undefined;
      void proxy.cut();
      return { cut_request_at: 1_000 };
    });

  test('flushed data comes back from the bucket alone', async () => {
    await guest.sh('head -c 8M /dev/urandom > /srv/first; sync');
    const hashes = await guest.sh(HASH);
    assert((await guest.flush()).uploaded_bytes >= 8 * MIB);
    await guest.sh('echo by the stop > /srv/second; sync');
    await guest.moveThroughStore();
    assert.equal(await guest.shAgain('sha256sum /srv/first | sha256sum'), hashes);
    assert.equal(await guest.sh('cat /srv/second'), 'by the stop');
    const in_folder = readdirSync(berth.paths.objects).filter((name) => name !== 'images'); // put there by the test's support
    assert.deepEqual(in_folder, [], 'nothing is in the folder');
  });

  test('without S3 during a flush: 503, the guest runs on, and the next flush has everything', async () => {
    await guest.sh('head -c 8M /dev/urandom > /srv/third; sync');
    const { generation } = (await guest.vm()).disk;
    cutInTheNextSegment();
    const refused = await berth.client.request<ErrorBody>('POST', `${guest.path}/vm/flush`);
    assert.deepEqual([refused.status, refused.body.error?.code], [503, 'UNAVAILABLE']);
    assert.match(refused.body.error.message, /object store cannot be used: .*ECONN/);
    assert(!refused.body.error.message.includes(bucket.bucket), 'users need not know where it is');
    assert.equal((await guest.vm()).disk.generation, generation);
    await guest.sh('echo on > /srv/fourth; sync');
    proxy.heal();
    await proxy.mend();
    // While a read of the overlay still waits for the store, a flush is refused as well.
    const { dirty_bytes } = await untilWorks('a flush', () => guest.flush(), { every_ms: 200 });
    assert(dirty_bytes >= 8 * MIB, `${dirty_bytes} bytes were still marked`);
  });

  test('without S3 during a stop: flush_pending, and stopped only once everything is saved', async () => {
    await guest.sh('head -c 8M /dev/urandom > /srv/fifth; sync');
    const hashes = await guest.sh(HASH);
    cutInTheNextSegment();
    await berth.client.expect(202, 'DELETE', `${guest.path}/vm`);
    const pending = await guest.becomes('waiting', ({ reason }) => reason?.code === 'flush_pending');
    assert.equal(pending.state, 'stopping');
    proxy.heal();
    await proxy.mend();
    await guest.reached('stopped');
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.shAgain(HASH), hashes);
  });

  test('without S3 at its start, the installation starts, readyz and log name the cause, VMs run on, and it recovers', async () => {
    // Until then the guest's reads need the store.
    const { sidecar } = overlayPaths(berth.paths.overlays, guest.id);
    await until('the overlay is whole', () => JSON.parse(readFileSync(sidecar, 'utf8')).filled === 'yes', {
      timeout_ms: 90_000,
    });
    await berth.stop();
    await proxy.cut();
    const from = berth.output.length;
    const started = berth.start();
    const readyz = () => fetch(`${berth.origin}/readyz`).catch(() => undefined);
    const tells = async () => {
      const answer = await readyz();
      const body = (await answer?.json()) as { object_store: { problem?: string } } | undefined;
      return body?.object_store.problem?.includes('ECONNREFUSED') && { status: answer?.status, body };
    };
    const told = await until('readyz tells', tells);
    assert.equal(told.status, 503);
    assert(!JSON.stringify(told.body).includes(bucket.bucket));
    await berth.printed(
      new RegExp(`s3 bucket ${bucket.bucket} at ${proxy.endpoint}: nothing listens there`),
      from,
    );
    assert.equal((await guest.vm()).state, 'running');
    assert.equal(await guest.shAgain('cat /srv/fourth'), 'on');
    await proxy.mend();
    await started;
    await guest.flush();
  });

  test('the credentials are neither in a log nor in the environment of QEMU and the database', async () => {
    assert(!berth.output.includes(server.secret_access_key));
    for (const pid of [guest.qemu.pid, await berth.postgresPid()]) {
      const environment = readFileSync(`/proc/${pid}/environ`, 'latin1');
      assert(!environment.includes('AWS_') && !environment.includes(server.secret_access_key), environment);
    }
  });

  test('the objects of a deleted instance are gone from the bucket', async () => {
    await guest.stop();
    await berth.client.expect([202, 204], 'DELETE', guest.path);
    await berth.printed(/"objects":\d+,"msg":"instance deleted"/, 0, 60_000);
    await until('nothing is left of it', async () => (await objectKeys()).length === 0);
  });

  async function objectKeys(): Promise<string[]> {
    const store = new S3Store({ ...bucket, endpoint: server.endpoint });
    const keys: string[] = [];
    for await (const { key } of store.list('disks/')) keys.push(key);
    store.close();
    return keys;
  }
});
