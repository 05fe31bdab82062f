/**
 * A disk that grows while its guest runs, also when agent or control plane are killed meanwhile. Its own installation, because it
 * kills roles. One story: each test continues where the previous one ended.
 */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import type { Instance } from '../../client/src/berth.ts';
import { killProcess } from '../../src/host/qemu/qemu-process.ts';
import { vmFolder } from '../../src/host/vm/record.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { until } from '../support/waiting.ts';

describe('a disk that grows', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let size_gib = 2;

  const show = () => berth.client.expect<Instance>(200, 'GET', guest.path);
  const change = (disk_gib: number) => berth.client.expect<Instance>(200, 'PATCH', guest.path, { disk_gib });
  const grow = async () => (await change(++size_gib)).disk.growth;
  const sizeInGuest = async () => Number(await guest.shAgain('df --output=size -B1 / | tail -1')) / 2 ** 30;
  const requireGrown = async () => {
    const gib = await sizeInGuest();
    assert.ok(gib > size_gib - 0.2 && gib < size_gib, `${size_gib} GiB became ${gib}`);
    assert.equal(await guest.sh('dmesg | grep -c "EXT4-fs error" || true'), '0');
  };
  /** More than the file system had before it grew, so that some of it lies beyond the old end. */
  const fill = async () => {
    const mib = Math.floor(((await sizeInGuest()) - size_gib + 1) * 1024);
    await guest.sh(
      `fallocate -l ${mib}M /srv/room; head -c 4000000 /dev/urandom > /srv/new; sync; rm /srv/room`,
    );
    await guest.sh('cat /srv/new >> /srv/kept; sha256sum /srv/kept > /srv/sum; sync');
  };
  const check = () =>
    guest.shAgain('echo 3 > /proc/sys/vm/drop_caches; sha256sum --quiet -c /srv/sum && echo right');

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'web');
  });
  after(() => berth?.dispose());

  test('has its new size in the running guest, on an overlay and from a template', async () => {
    const boot = await guest.bootId();
    assert.equal(await grow(), 'done');
    await requireGrown();
    await fill();
    assert.equal(await guest.bootId(), boot);
    await guest.flush();
    assert.equal(await grow(), 'done', 'also after a flush, which exports the disk');
    await requireGrown();
    await fill();
    const receipt = await guest.flush();
    assert.ok(receipt.uploaded_bytes > 4_000_000);
    await guest.restart();
    await requireGrown();
    assert.equal(await check(), 'right');
  });

  test('grows before it is whole, and comes from the object store with its new part', async () => {
    await guest.moveThroughStore();
    assert.ok(existsSync(join(vmFolder(berth.paths.vms, guest.id as InstanceId).runtime, 'lazy.sock')));
    assert.equal(await grow(), 'done');
    await requireGrown();
    await fill();
    await guest.moveThroughStore();
    await requireGrown();
    assert.equal(await check(), 'right');
  });

  for (const role of ['agent', 'control-plane'] as const) {
    test(`grows although the ${role} is killed meanwhile`, async () => {
      const agent = berth.role('agent');
      killProcess(agent, 'SIGSTOP');
      const answering = change(++size_gib).then(
        ({ disk }) => disk.growth,
        () => 'no answer',
      );
      await until('the growth is wanted', async () => (await show()).disk_gib === size_gib);
      await berth.kill(role);
      if (role !== 'agent') killProcess(agent, 'SIGCONT');
      await berth.recovered(role);
      await until('it has grown', async () => (await show()).disk.growth === 'done');
      await answering;
      await requireGrown();
      await guest.flush();
    });
  }

  test('of a suspended VM grows when it has resumed, without a boot', async () => {
    const boot = await guest.bootId();
    await guest.suspend();
    assert.equal(await grow(), 'next_boot');
    await guest.start();
    await until('it has grown', async () => (await show()).disk.growth === 'done');
    await requireGrown();
    assert.equal(await guest.bootId(), boot);
    await fill();
  });

  test('of a killed VM has the size, and what was written to its new part', async () => {
    assert.equal(await grow(), 'done');
    await fill();
    killProcess(guest.qemu, 'SIGKILL');
    await guest.becomes('failed', ({ state }) => state === 'failed');
    await guest.start();
    await requireGrown();
    assert.equal(await check(), 'right');
    await guest.moveThroughStore();
    assert.equal(await check(), 'right');
  });

  test('waits for the next boot while the file system cannot grow', async () => {
    await guest.sh('mv /usr/lib/berth/perl /usr/lib/berth/perl.away');
    const answering = grow();
    await until('the growth is wanted', async () => (await show()).disk_gib === size_gib);
    await guest.sh('mv /usr/lib/berth/perl.away /usr/lib/berth/perl; sync');
    await guest.restart();
    assert.equal(await answering, 'next_boot');
    await until('it has grown', async () => (await show()).disk.growth === 'done');
    await requireGrown();
  });
});
