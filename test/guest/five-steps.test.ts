/**
 * A user's steps from the first login to the same disk after a restart, on one installation with one real guest. One story:
 * each test continues where the previous one ended.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import type { ErrorBody, InstanceBody, SshBody } from '../support/rest-client.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { SshClient } from '../support/ssh-client.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const MIB = 2 ** 20;
const DATA = '/srv/random';

describe('the five steps', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let details: SshBody;
  let hash: string;

  const contents = async () => {
    await guest.sh('echo 3 > /proc/sys/vm/drop_caches');
    const [random, tree] = (
      await guest.sh(
        `sha256sum < ${DATA}; find /opt/tree -type f -o -type l | sort | xargs stat -c '%n %a %u %s %N' | sha256sum`,
      )
    ).split('\n');
    return { random, tree };
  };
  let tree: string | undefined;

  before(async () => {
    // The first start, with a generated password, an account with a key: done by the harness.
    berth = await borrowInstallation();
  });
  after(returnInstallation);

  test('an instance is created, its VM starts, and it runs with SSH details', async () => {
    // No automatic flush but the first: what a receipt says is then what this test has written.
    guest = await GuestInstance.create(berth, 'five', { auto_flush_seconds: null });
    const before = await guest.vm();
    assert.deepEqual([before.state, before.boot, before.id], ['stopped', 0, null]);
    const refused = await berth.client.request<ErrorBody>('GET', `${guest.path}/ssh`);
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'VM_NOT_RUNNING']);
    const vm = await guest.start();
    assert.equal(vm.boot, 1);
    details = await guest.learnHost();
    assert.equal(details.user, 'root');
    assert.equal(details.host_keys.length, 1);
    assert.equal(details.allowed_keys, 1);
    assert(details.port >= berth.ssh_ports.first && details.port <= berth.ssh_ports.last);
    assert.equal(await guest.sh('hostname'), 'five');
    await guest.becomes('durable soon after its first boot', ({ disk }) => disk.generation === 1);
  });

  test('files and 24 MiB of random data are written in the guest', async () => {
    await guest.sh(
      'mkdir -p /opt/tree && cp -a /usr/share/perl5 /etc /opt/tree/ && ln -s etc /opt/tree/link',
    );
    await guest.sh(`head -c ${24 * MIB} /dev/urandom > ${DATA}; sync`);
    ({ random: hash, tree } = (await contents()) as { random: string; tree: string });
    assert.match(hash, /^[0-9a-f]{64}/);
  });

  test('a flush makes all of it durable as a new generation, and a second one finds nothing dirty', async () => {
    const receipt = await guest.flush();
    assert.equal(receipt.generation, 2);
    assert.equal(receipt.consistency, 'filesystem');
    assert(receipt.dirty_bytes >= 24 * MIB, `${receipt.dirty_bytes} bytes were dirty`);
    assert(receipt.uploaded_bytes >= 24 * MIB, 'random data does not shrink');
    const instance = await berth.client.expect<InstanceBody>(200, 'GET', guest.path);
    assert.equal(instance.disk.generation, 2);
    // The guest's own journal settles with one or two more flushes; then nothing is dirty.
    const quiet = await until('a flush finds nothing dirty', async () => {
      const next = await guest.flush();
      assert(next.uploaded_bytes < 4 * MIB, `${next.uploaded_bytes} bytes after a flush`);
      return next.dirty_bytes === 0 && next;
    });
    assert.deepEqual([quiet.uploaded_bytes, quiet.segments], [0, 0]);
    const stored = (await berth.client.expect<InstanceBody>(200, 'GET', guest.path)).disk;
    assert.equal(quiet.generation, stored.generation, 'an empty flush makes no generation');
    for (const path of await guest.segments()) {
      const object = await readFile(path);
      assert.equal(object.readUInt16LE(object.length - 224 + 10) & 2, 2, `${path} is encrypted`);
    }
  });

  test('stopped and without any local overlay, it starts with the same host key, port and data', async () => {
    const stopped = await guest.stop();
    assert.equal(stopped.disk.dirty_bytes, 0);
    const refused = await berth.client.request<ErrorBody>('GET', `${guest.path}/ssh`);
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'VM_NOT_RUNNING']);
    const again = await berth.client.request('DELETE', `${guest.path}/vm`);
    assert.equal(again.status, 200);
    const flushed = await guest.flush();
    assert.deepEqual([flushed.dirty_bytes, flushed.generation], [0, stopped.disk.generation]);
    await berth.removeOverlays(guest.id);
    const vm = await guest.start();
    assert.equal(vm.boot, 2);
    assert.notEqual(vm.id, stopped.id);
    // ssh still knows the first boot's line only.
    assert.deepEqual(await contents(), { random: hash, tree });
    const now = await guest.sshDetails();
    assert.deepEqual(now, details);
    assert.match(await guest.sh('dmesg | grep -c "EXT4-fs error" || true'), /^0$/);
  });

  test('a restart keeps the VM, its port, its keys and data that was never flushed', async () => {
    await guest.sh('echo not flushed > /srv/note; sync');
    const before = await guest.vm();
    const boot_id = await guest.bootId();
    const vm = await guest.restart();
    assert.deepEqual([vm.id, vm.boot], [before.id, before.boot]);
    assert.notEqual(await guest.bootId(), boot_id);
    assert.equal(await guest.sh('cat /srv/note'), 'not flushed');
    assert.deepEqual((await contents()).random, hash);
    assert.equal((await guest.vm()).disk.generation, before.disk.generation, 'nothing was flushed');
  });

  test('no password and no unknown key gets in', async () => {
    const stranger = new SshClient(berth.data_dir, 'stranger');
    stranger.know(details.known_hosts);
    const unknown = await stranger.run(guest.target, 'true');
    assert.equal(unknown.code, 255);
    assert.match(unknown.stderr, /Permission denied \(publickey\)/);
    const options = [
      'PubkeyAuthentication=no',
      'PreferredAuthentications=password,keyboard-interactive,hostbased,none',
    ];
    const password = await berth.ssh.run(guest.target, 'true', { options });
    assert.equal(password.code, 255);
    assert.match(password.stderr, /Permission denied \(publickey\)/);
  });

  test('a key added later gets in without a restart, and a revoked one is refused at the next handshake', async () => {
    const later = new SshClient(berth.data_dir, 'later');
    later.know(details.known_hosts);
    const key = { name: 'later', public_key: later.public_key };
    const { id } = await berth.client.expect<{ id: string }>(201, 'POST', '/v1/me/ssh-keys', key);
    await until('the new key gets in', async () => (await later.run(guest.target, 'true')).code === 0);
    await berth.client.expect(204, 'DELETE', `/v1/me/ssh-keys/${id}`);
    await until('the revoked key is refused', async () =>
      (await later.run(guest.target, 'true')).stderr.includes('Permission denied (publickey)'),
    );
    assert.equal(await guest.shAgain('echo in'), 'in', 'the other key stays');
  });

  test("an explicit empty key set refuses every key, and the account mode accepts the account's keys again", async () => {
    await berth.client.expect(200, 'PUT', `${guest.path}/ssh-keys`, { ssh_key_ids: [] });
    const refused = async () =>
      (await berth.ssh.run(guest.target, 'true')).stderr.includes('Permission denied (publickey)');
    await until('nobody gets in', refused);
    await berth.client.expect(200, 'PUT', `${guest.path}/ssh-keys`, { mode: 'account' });
    assert.equal(await guest.shAgain('echo in'), 'in');
  });

  test('a forced stop keeps what the guest has written and synced', async () => {
    await guest.sh('echo synced > /srv/synced; sync');
    const { boot } = await guest.vm();
    await guest.stop({ force: true });
    await berth.removeOverlays(guest.id);
    assert.equal((await guest.start()).boot, boot + 1);
    assert.equal(await guest.sh('cat /srv/synced'), 'synced');
    assert.equal((await contents()).random, hash);
  });

  // As by the API above, but for who asks.
  test('a guest that reboots by itself comes back in the same boot, with its keys', THOROUGH, async () => {
    const before = await guest.vm();
    const boot_id = await guest.bootId();
    await berth.ssh.run(guest.target, 'echo own > /srv/own; sync; reboot');
    await until('the guest has booted anew', async () => {
      const result = await berth.ssh.run(guest.target, 'cat /proc/sys/kernel/random/boot_id');
      return result.code === 0 && result.stdout.trim() !== boot_id;
    });
    const vm = await guest.reached('running');
    assert.deepEqual([vm.id, vm.boot], [before.id, before.boot]);
    assert.equal(await guest.shAgain('cat /srv/own'), 'own');
  });

  test('a guest that powers off by itself ends stopped, saved, and says so', async () => {
    await berth.ssh.run(guest.target, 'echo last > /srv/last; poweroff');
    const vm = await guest.reached('stopped');
    assert.equal(vm.reason?.code, 'guest_poweroff');
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh('cat /srv/last'), 'last');
    assert.deepEqual(await contents(), { random: hash, tree });
  });

  test('a deleted instance leaves nothing behind', async () => {
    const pid = guest.qemu.pid;
    await berth.client.expect(202, 'DELETE', guest.path);
    await until('the instance is gone', async () => {
      return (await berth.client.request('GET', guest.path)).status === 404;
    });
    assert.deepEqual(await guest.segments(), []);
    assert.throws(() => process.kill(pid, 0), { code: 'ESRCH' });
    assert.throws(() => guest.qemu, { code: 'ENOENT' });
    await assert.rejects(berth.removeOverlays(guest.id));
  });
});
