/**
 * A machine whose objects are in a bucket is backed up, lost with its bucket, and restored into a new one. Buckets of another
 * installation are refused. One story, on a real S3 server.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { type S3Settings, S3Store } from '../../src/object-store/s3-store.ts';
import { readMark } from '../../src/object-store/store-mark.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { bucketSettings, S3Server } from '../support/s3-server.ts';
import { thorough } from '../support/thorough.ts';

const THOROUGH = thorough(import.meta.filename);

const MAY_RUN = {
  ...THOROUGH,
  timeout: 600_000,
  ...(CANNOT_BOOT_GUESTS ? { skip: CANNOT_BOOT_GUESTS } : {}),
};

describe('a backup with the objects of a bucket', MAY_RUN, () => {
  let server: S3Server;
  let old: S3Settings;
  let berth: Installation;
  let guest: GuestInstance;
  let folder: string;
  let saved: string;
  let sum: string;

  async function keysIn(bucket: S3Settings): Promise<string[]> {
    const keys: string[] = [];
    for await (const { key } of new S3Store(bucket).list('')) keys.push(key);
    return keys;
  }
  async function empty(bucket: S3Settings): Promise<void> {
    for (const key of await keysIn(bucket)) await new S3Store(bucket).delete(key);
  }

  before(async () => {
    server = await S3Server.start();
    old = await server.bucket();
    folder = await mkdtemp(join(tmpdir(), 'bt-backup-s3-'));
    saved = join(folder, 'saved');
    berth = await Installation.start({ settings: bucketSettings(old) });
  });
  after(async () => {
    await berth?.dispose();
    await server?.close();
    await rm(folder, { recursive: true, force: true });
  });

  test('is made of a running machine', async () => {
    guest = await GuestInstance.running(berth, 'in-s3');
    await guest.sh('head -c 9000000 /dev/urandom > /srv/file; sync');
    sum = await guest.sh('sha256sum /srv/file');
    await guest.flush();
    await guest.sh('echo late > /srv/late; sync');
    const ran = await berth.cli('backup', '--with-objects', saved);
    assert.equal(ran.code, 0, ran.err);
    assert(!ran.err.includes('which stay in the bucket'), ran.err);
  });

  test('a start refuses another bucket than before, and one of another installation', async () => {
    await berth.stop();
    const [unused, theirs] = [await server.bucket(), await server.bucket()];
    await new S3Store(theirs).put('berth-store', [Buffer.from(`${crypto.randomUUID()}\n`)]);
    for (const [bucket, why] of [
      [unused, /is another object store than before/],
      [theirs, /belongs to another installation of Berth/],
    ] as const) {
      const { child, ended, printed } = berth.launch(bucketSettings(bucket));
      // What it has printed may come after its end.
      await once(child, 'close');
      assert.equal(await ended, 2, printed());
      assert.match(printed(), why);
    }
    assert.deepEqual(await keysIn(unused), [], 'nothing was written there');
  });

  test('restores a lost machine into a new bucket, and refuses the bucket of another installation', async () => {
    const theirs = await server.bucket();
    await new S3Store(theirs).put('berth-store', [Buffer.from(`${crypto.randomUUID()}\n`)]);
    const mark = await readMark(new S3Store(old));
    await berth.lose();
    await empty(old);
    berth.set(bucketSettings(theirs));
    const refused = await berth.cli('restore-backup', saved);
    assert.equal(refused.code, 5, refused.err);
    assert.match(refused.err, /belongs to another installation of Berth/);
    assert.equal((await keysIn(theirs)).length, 1);
    const fresh = await server.bucket();
    berth.set(bucketSettings(fresh));
    const restored = await berth.cli('restore-backup', saved);
    assert.equal(restored.code, 0, restored.err);
    await berth.start();
    await berth.login();
    const taken = await readMark(new S3Store(fresh));
    assert(taken !== null && taken !== mark, 'the new bucket has a mark of its own');
    const verified = await berth.cli('disk', 'verify', '--all');
    assert.match(verified.out, /^in-s3, generation \d+: intact/, verified.err);
    const vm = await guest.start();
    assert.equal(vm.reason?.code, 'recovered');
    assert.equal(await guest.shAgain('sha256sum /srv/file'), sum);
    assert.equal(await guest.shAgain('ls /srv'), 'file', 'what was not durable then is not there');
    assert((await guest.flush()).generation > 0);
  });
});
