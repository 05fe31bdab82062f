/**
 * No space in the object store or on the host's disk: nothing is lost, the error names the cause, and everything continues once
 * there is space. Both are small file systems in memory here.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { overlayPaths } from '../../src/host/disk/overlay-files.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { NotificationOut as Told } from '../support/notifications.ts';
import type { ErrorBody } from '../support/rest-client.ts';
import { SmallDisk } from '../support/small-disk.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const MIB = 2 ** 20;
const HASH = 'sha256sum /srv/* | sha256sum';

describe('without room', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let objects: SmallDisk;
  let overlays: SmallDisk;

  const readyz = async () => (await fetch(`${berth.origin}/readyz`)).status;
  const refusedFlush = async (why: RegExp) => {
    const { generation } = (await guest.vm()).disk;
    const refused = await berth.client.request<ErrorBody>('POST', `${guest.path}/vm/flush`);
    assert.deepEqual([refused.status, refused.body.error?.code], [503, 'UNAVAILABLE']);
    assert.match(refused.body.error.message, why);
    assert.match(refused.headers.get('retry-after') ?? '', /^[0-9]+$/);
    assert.equal((await guest.vm()).disk.generation, generation);
    assert.equal((await guest.vm()).state, 'running');
  };

  const mailTexts = async () => {
    const folder = join(berth.data_dir, 'mail');
    // One that is being written has a name with a dot in front.
    const names = (await readdir(folder).catch((): string[] => [])).filter((name) => !name.startsWith('.'));
    return Promise.all(names.map((name) => readFile(join(folder, name), 'utf8')));
  };
  /** Unread, of this instance, with a mail. */
  const toldOfFlush = (cause: string) =>
    until(`told of the failed flush, ${cause}`, async () => {
      const { data } = await berth.client.expect<{ data: Told[] }>(200, 'GET', '/v1/notifications');
      const found = data.find(
        ({ kind, resource }) => kind === 'disk.flush_failed' && resource?.id === guest.id,
      );
      return found?.data['cause'] === cause && (await mailTexts()).some((text) => text.includes(found.title));
    });
  const autoFlush = (auto_flush_seconds: number | null) =>
    berth.client.expect(200, 'PATCH', guest.path, { auto_flush_seconds });

  before(async () => {
    berth = await Installation.start({
      prepare: (data_dir) => {
        objects = new SmallDisk(join(data_dir, 'objects'), 256, 0o700);
        overlays = new SmallDisk(join(data_dir, 'overlays'), 160, 0o711);
        return () => {
          objects.unmount();
          overlays.unmount();
        };
      },
    });
    guest = await GuestInstance.running(berth, 'full');
    await guest.sh('head -c 4M /dev/urandom > /srv/first; sync');
    await guest.flush();
  });
  after(() => berth?.dispose());

  test('in the store, a flush gets 503 with the cause, the guest keeps running, and the next flush saves everything', async () => {
    await guest.sh('head -c 16M /dev/urandom > /srv/second; sync');
    objects.fill(6 * MIB);
    await refusedFlush(/the disk is full/);
    await toldOfFlush('asked');
    await autoFlush(5);
    await toldOfFlush('automatic');
    await autoFlush(null);
    await guest.sh('echo on > /srv/third; sync');
    await objects.makeRoom();
    const { dirty_bytes } = await guest.flush();
    assert(dirty_bytes >= 16 * MIB, `${dirty_bytes} bytes were still marked`);
  });

  test(
    'a store that became read-only refuses a flush, readyz says so, and both recover',
    THOROUGH,
    async () => {
      await guest.sh('head -c 1M /dev/urandom > /srv/readonly; sync');
      objects.remount('ro');
      await refusedFlush(/read-only/);
      await until('readyz is 503', async () => (await readyz()) === 503, {
        timeout_ms: 45_000,
        every_ms: 200,
      });
      objects.remount('rw');
      await berth.ready();
      assert((await guest.flush()).dirty_bytes >= MIB);
    },
  );

  test('in the store, a stop waits as flush_pending until everything is saved', async () => {
    await guest.sh('head -c 16M /dev/urandom > /srv/fourth; sync');
    const hashes = await guest.sh(HASH);
    objects.fill(4 * MIB);
    await berth.client.expect(202, 'DELETE', `${guest.path}/vm`);
    const pending = await guest.becomes('waiting', ({ reason }) => reason?.code === 'flush_pending');
    assert.equal(pending.state, 'stopping');
    assert.match(pending.reason?.message ?? '', /the disk is full/);
    const start = await berth.client.request<ErrorBody>('POST', `${guest.path}/vm`);
    assert.deepEqual([start.status, start.body.error.code], [409, 'CONFLICT']);
    await berth.kill('agent');
    await berth.recovered('agent');
    assert.equal((await guest.vm()).state, 'stopping', 'not stopped by another agent either');
    await objects.makeRoom();
    await guest.reached('stopped');
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh(HASH), hashes);
  });

  test('on the host, the guest waits without an error, and continues once there is space', async () => {
    // Else it takes room beside us.
    const { sidecar } = overlayPaths(berth.paths.overlays, guest.id);
    const whole = () => JSON.parse(readFileSync(sidecar, 'utf8')).filled === 'yes';
    await until('the overlay is whole', whole, { timeout_ms: 90_000 });
    overlays.fill(6 * MIB);
    const writing = guest.sh('head -c 16M /dev/urandom > /srv/fifth && sync && echo written');
    await berth.printed(/a disk request failed/, 0, 60_000);
    const waits = () => guest.becomes('waiting', ({ reason }) => reason?.code === 'disk_full');
    const told = await waits();
    assert.equal(told.state, 'running');
    assert.match(told.reason?.message ?? '', /no room .* goes on by itself/);
    await berth.kill('agent');
    await berth.recovered('agent');
    assert.equal((await waits()).state, 'running', 'nor does another agent give it up');
    await overlays.makeRoom();
    assert.equal(await writing, 'written');
    await guest.becomes('going on', ({ state, reason }) => state === 'running' && reason?.code === 'ready');
    assert.equal(await guest.sh('dmesg | grep -ciE "I/O error|EXT4-fs error" || true'), '0');
    const hashes = await guest.sh(HASH);
    await guest.flush();
    await guest.moveThroughStore();
    assert.equal(await guest.sh(HASH), hashes);
  });

  test('on the host, a start fails and says so, and works once there is space', THOROUGH, async () => {
    const hashes = await guest.sh(HASH);
    await guest.stop();
    await berth.removeOverlays(guest.id);
    overlays.fill(MIB);
    await berth.client.expect(202, 'POST', `${guest.path}/vm`);
    const failed = await guest.becomes('failed', ({ state }) => state !== 'starting');
    assert.deepEqual([failed.state, failed.reason?.code], ['failed', 'disk_full'], failed.reason?.message);
    await overlays.makeRoom();
    await guest.start();
    assert.equal(await guest.sh(HASH), hashes);
  });
});
