/**
 * Restore and fork with real guests: a restore brings back an earlier disk, a fork starts with another's disk and has its own
 * identity from its first boot. One story.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import type { ErrorBody, InstanceBody } from '../support/rest-client.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';

describe('fork and restore', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  let berth: Installation;
  let parent: GuestInstance;
  let fork: GuestInstance;
  let a: number;
  let b: number;

  const generation = async ({ path }: GuestInstance): Promise<number> =>
    (await berth.client.expect<InstanceBody>(200, 'GET', path)).disk.generation;
  const flushed = async (guest: GuestInstance, file: string): Promise<number> => {
    await guest.sh(`echo ${file} > /srv/${file}; sync`);
    return (await guest.flush()).generation;
  };
  /** What its objects of a generation are encrypted with. */
  const keyOf = async ({ id }: GuestInstance, number: number): Promise<unknown> => {
    const rows = await berth.sql(
      `select distinct s ->> 'key_id' as key_id from generations g, jsonb_array_elements(g.segments) s
       where g.instance_id = '${id}' and g.generation = ${number}`,
    );
    assert.equal(rows.length, 1);
    return rows[0]?.['key_id'];
  };
  const files = (guest: GuestInstance) => guest.sh('cd /srv && echo *');
  const machineId = (guest: GuestInstance) => guest.sh('cat /etc/machine-id');

  before(async () => {
    berth = await borrowInstallation();
  });
  after(returnInstallation);

  test('a running instance is forked from its last durable generation, and cannot be restored', async () => {
    parent = await GuestInstance.running(berth, 'parent');
    a = await flushed(parent, 'a');
    b = await flushed(parent, 'b');
    assert(b > a);
    await parent.sh('echo not flushed > /srv/c; sync');
    fork = await parent.fork('branch');
    assert.equal(await generation(fork), b);
    const refused = await berth.client.request<ErrorBody>('POST', `${parent.path}/restore`, {
      generation: a,
    });
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'CONFLICT']);
  });

  test('the fork boots beside its parent with its data, another host key, machine id and port', async () => {
    await fork.start();
    const [own, others] = [await fork.learnHost(), parent.target];
    assert.equal(await files(fork), 'a b');
    assert.equal(await files(parent), 'a b c');
    assert.notEqual(own.host_keys[0]?.fingerprint, others.host_keys[0]?.fingerprint);
    assert.notEqual(own.port, others.port);
    assert.notEqual(await machineId(fork), await machineId(parent));
    assert.equal(await fork.sh('hostname'), 'branch');
    const { disk } = await fork.becomes('durable soon after its first boot', (vm) => vm.disk.generation > b);
    assert.equal((await parent.vm()).disk.generation, b);
    assert(disk.generation > b);
  });

  test("each one's writes stay its own", async () => {
    await flushed(fork, 'of-fork');
    await flushed(parent, 'of-parent');
    assert.equal(await files(fork), 'a b of-fork');
    assert.equal(await files(parent), 'a b c of-parent');
  });

  test("no key of the fork decrypts the parent's later writes", async () => {
    const [shared, later] = [await keyOf(parent, b), await keyOf(parent, await generation(parent))];
    const rows = await berth.sql(`select key_id from data_keys where instance_id = '${fork.id}'`);
    const of_fork = rows.map((row) => row['key_id']);
    assert.deepEqual([of_fork.includes(shared), of_fork.includes(later)], [true, false]);
  });

  test('a restore brings the disk of a generation back, without later writes', async () => {
    await parent.stop();
    const last = await generation(parent);
    // The overlay of before is still there, clean: it must not be believed.
    const restored = await berth.client.expect<InstanceBody>(200, 'POST', `${parent.path}/restore`, {
      generation: a,
    });
    assert.equal(restored.disk.generation, last + 1);
    const known = parent.target;
    await parent.start();
    assert.equal(await files(parent), 'a');
    const now = await parent.sshDetails();
    assert.deepEqual([now.port, now.host_keys], [known.port, known.host_keys], 'host key and port stay');
  });

  test('a second restore brings the later generation back', async () => {
    await parent.stop();
    await berth.client.expect(200, 'POST', `${parent.path}/restore`, { generation: b });
    await parent.start();
    assert.equal(await files(parent), 'a b');
  });

  test('the parent is deleted, and the fork starts from the object store alone with its identity', async () => {
    const [known, id] = [fork.target, await machineId(fork)];
    await fork.stop();
    await berth.client.expect(202, 'DELETE', parent.path);
    await parent.gone();
    await berth.removeOverlays(fork.id);
    await fork.start();
    assert.equal(await files(fork), 'a b of-fork');
    assert.deepEqual(await fork.sshDetails(), known);
    assert.equal(await machineId(fork), id);
    assert.match(await fork.sh('dmesg | grep -c "EXT4-fs error" || true'), /^0$/);
  });
});
