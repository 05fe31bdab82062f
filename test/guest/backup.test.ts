/** A machine is backed up while it runs, lost, and restored; a disk is exported and imported as a file. One story. */
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rename, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { InstanceBody } from '../support/rest-client.ts';
import { thorough } from '../support/thorough.ts';

const THOROUGH = thorough(import.meta.filename);

describe('backup', { skip: CANNOT_BOOT_GUESTS, timeout: 900_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let folder: string;
  let saved: string;
  let sum: string;

  const done = async (...args: string[]): Promise<string> => {
    const ran = await berth.cli(...args);
    assert.equal(ran.code, 0, `${args.join(' ')}: ${ran.out}${ran.err}`);
    return ran.out;
  };

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'bt-backup-'));
    saved = join(folder, 'saved');
    berth = await Installation.start();
  });
  after(async () => {
    await berth?.dispose();
    await rm(folder, { recursive: true, force: true });
  });

  test('the secret key is replaced while a VM runs, without a restart: what follows is with the new one', async () => {
    guest = await GuestInstance.running(berth, 'kept');
    const { secret_key } = berth.paths;
    const file = join(folder, 'new-key');
    const said = await done('secret-key', 'rotate', file);
    assert.ok(said.includes(`Next: mv ${file} ${secret_key} && berth secret-key forget-old\n`), said);
    const [old, made] = [await readFile(secret_key, 'utf8'), await readFile(file, 'utf8')];
    assert.notEqual(made, old);
    await rename(file, secret_key);
    await done('secret-key', 'forget-old');
  });

  test('is made of a running machine, and says that it contains the secret key', async () => {
    await guest.sh('head -c 3000000 /dev/urandom > /srv/file; sync');
    sum = await guest.sh('sha256sum /srv/file');
    await guest.flush();
    await guest.sh('echo late > /srv/late; sync');
    const ran = await berth.cli('backup', saved);
    assert.equal(ran.code, 0, ran.err);
    assert.match(ran.err, /contains the secret key/);
    assert.equal((await stat(saved)).mode & 0o777, 0o700);
    assert.equal((await stat(join(saved, 'secret-key'))).mode & 0o777, 0o600);
    assert.equal(
      await readFile(join(saved, 'secret-key'), 'utf8'),
      await readFile(berth.paths.secret_key, 'utf8'),
    );
    assert.equal(await guest.shAgain('cat /srv/late'), 'late', 'its VM runs on');
    assert.equal(
      (await berth.cli('restore-backup', saved)).code,
      5,
      'a data folder that is in use is not empty',
    );
  });

  // The bytes are compared without a guest (test/cli/disk-tools.test.ts).
  test(
    'a disk is exported as a file and imported into a new instance, which boots from it',
    THOROUGH,
    async () => {
      const file = join(folder, 'kept.qcow2');
      await done('disk', 'export', 'kept', file, '--format', 'qcow2');
      const copy = await GuestInstance.create(berth, 'copy');
      await done('disk', 'import', 'copy', file);
      await copy.start();
      await copy.learnHost();
      assert.equal(await copy.shAgain('sha256sum /srv/file'), sum);
      assert.equal(await copy.shAgain('ls /srv'), 'file');
      await copy.stop({ force: true });
    },
  );

  test('restores a lost machine: login, instances, disks, and a VM with its file', async () => {
    await berth.lose();
    await done('restore-backup', saved);
    await berth.start();
    await berth.login();
    const { data } = await berth.client.expect<{ data: InstanceBody[] }>(200, 'GET', '/v1/instances');
    assert.deepEqual(
      data.map(({ name }) => name),
      ['kept'],
      'what came after the backup is not in it',
    );
    const lost = await guest.vm();
    assert.deepEqual([lost.state, lost.reason?.code], ['failed', 'host_lost']);
    assert.match(await done('disk', 'verify', '--all'), /^kept, generation \d+: intact/);
    const vm = await guest.start();
    assert.equal(vm.reason?.code, 'recovered');
    assert.equal(await guest.shAgain('sha256sum /srv/file'), sum);
    assert.equal(await guest.shAgain('ls /srv'), 'file', 'what was not durable then is not there');
    assert((await guest.flush()).generation > 0);
  });
});
