/**
 * The database has lost its last commits, as after a failover or a restore to an earlier time, so it does not know some receipts.
 * Generations that a host still holds are committed again or kept for the operator; nothing is removed.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { killProcess } from '../../src/host/qemu/qemu-process.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';

describe('a database that was set back', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'set-back');
  });
  after(() => berth?.dispose());

  const write = (name: string) =>
    guest.sh(`head -c 2M /dev/urandom > /srv/${name}; sync; sha256sum /srv/${name}`);
  const read = (name: string) => guest.shAgain(`sha256sum /srv/${name}`);
  /** To that generation; the newest VM's own word of its commits with it. */
  const setBack = async (generation: number) => {
    await berth.sql('delete from generations where instance_id = $1 and generation > $2', [
      guest.id,
      generation,
    ]);
    await berth.sql(
      `update disks d set generation = g.generation, commit_id = g.commit_id from generations g
       where d.instance_id = $1 and g.instance_id = $1 and g.generation = $2`,
      [guest.id, generation],
    );
    await berth.sql(
      `update vms v set generation = d.generation, commit_id = d.commit_id from disks d
       where v.instance_id = $1 and d.instance_id = $1
         and v.boot = (select max(boot) from vms where instance_id = $1)`,
      [guest.id],
    );
  };
  const aside = () =>
    readdirSync(join(berth.paths.overlays, 'aside')).filter((name) => name.endsWith('.qcow2'));

  test("regains a running VM's receipts with its next flush", async () => {
    const { generation } = await guest.flush();
    const lost = await write('running');
    await guest.flush();
    await setBack(generation);
    const later = await write('later');
    const receipt = await guest.flush();
    assert(receipt.dirty_bytes >= 4 * 2 ** 20, 'all of it again');
    killProcess(guest.qemu, 'SIGKILL');
    await guest.becomes('failed', ({ state }) => state === 'failed');
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.deepEqual([await read('running'), await read('later')], [lost, later]);
  });

  test("regains an idle VM's receipt: a flush without changes saves everything again", async () => {
    const { generation } = await guest.flush();
    const lost = await write('idle');
    await guest.flush();
    await setBack(generation);
    const receipt = await guest.flush();
    assert(receipt.dirty_bytes >= 2 * 2 ** 20, 'all of it again');
    killProcess(guest.qemu, 'SIGKILL');
    await guest.becomes('failed', ({ state }) => state === 'failed');
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await read('idle'), lost);
  });

  test('regains the data of a stopped VM at its next start, from its host', async () => {
    const { generation } = await guest.flush();
    const lost = await write('stopped');
    await guest.stop();
    await setBack(generation);
    const vm = await guest.start();
    assert.notEqual(vm.reason?.code, 'recovered');
    assert.equal(await read('stopped'), lost);
    await guest.moveThroughStore();
    assert.equal(await read('stopped'), lost);
  });

  test('keeps the disk of a later VM: the older overlay is set aside, and the start says so', async () => {
    const { generation } = await guest.flush();
    await write('aside');
    await guest.stop();
    await setBack(generation);
    // The VM that had the disk since is not known of either.
    await berth.sql(
      `update vms set commit_id = gen_random_uuid() where instance_id = $1
         and boot = (select max(boot) from vms where instance_id = $1)`,
      [guest.id],
    );
    const vm = await guest.start();
    assert.equal(vm.reason?.code, 'recovered');
    assert.match(vm.reason?.message ?? '', new RegExp(`generation ${generation}.*ask the operator`));
    assert.equal(await guest.shAgain('ls /srv/aside 2> /dev/null || echo none'), 'none');
    assert.equal(aside().length, 1);
    assert.match(berth.output, /it is set aside/);
  });

  test('does not run memory a second time, in a reused epoch, and says so', async () => {
    await guest.shAgain('echo ran > /run/memory');
    const { boot } = await guest.suspend();
    assert.equal((await guest.start()).reason?.code, 'resumed');
    await guest.shAgain('echo later > /srv/later; sync');
    const before = aside().length;
    const of_boot = 'select id from vms where instance_id = $1 and boot = $2';
    await berth.sql(`update memory_images set vm_id = (${of_boot}) where instance_id = $1`, [guest.id, boot]);
    await berth.sql('update disks set epoch = epoch - 1 where instance_id = $1', [guest.id]);
    await berth.sql('delete from vms where instance_id = $1 and boot > $2', [guest.id, boot]);
    const vm = await guest.start();
    assert.deepEqual([vm.boot, vm.reason?.code], [boot + 1, 'cold_boot']);
    assert.match(vm.reason?.message ?? '', /Another start has consumed the memory/);
    assert.equal(await guest.shAgain('cat /run/memory 2> /dev/null || echo gone'), 'gone');
    assert.equal(aside().length, before + 1, 'what the other start wrote is kept');
  });
});
