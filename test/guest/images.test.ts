/**
 * A host that has lost its images starts VMs from the object store, and the guest has everything that was configured. With
 * In turn (`test/support/thorough.ts`) also for debian-12-systemd and a user's image.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { lookup } from 'node:dns/promises';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { Cli } from '../support/cli.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const GIB = 2 ** 30;
/** The clock is the host's to the second, on a machine that does little else while the guest is told of it. */
const CLOCK_SLACK_SECONDS = 10;

/** With the settings of the installation under test. */
const cli = new Cli();

function settle({ data_dir, port, ssh_ports }: Installation): void {
  Object.assign(cli.env, {
    BERTH_DATA_DIR: data_dir,
    BERTH_LISTEN: `127.0.0.1:${port}`,
    BERTH_SSH_PORTS: `${ssh_ports.first}-${ssh_ports.last}`,
  });
}

describe('images', { skip: CANNOT_BOOT_GUESTS, timeout: 1_800_000 }, () => {
  let berth: Installation;

  before(async () => {
    berth = await Installation.start();
    settle(berth);
  });
  after(() => berth?.dispose());

  const image = async (id: string) => {
    const { data } = await berth.client.expect<{ data: { id: string; current: string | null }[] }>(
      200,
      'GET',
      '/v1/images',
    );
    return data.find((each) => each.id === id);
  };

  async function holdsWhatGuestsAreToHave(guest: GuestInstance, name: string): Promise<void> {
    assert.equal(await guest.sh('hostname'), name);
    assert.equal(await guest.sh(`getent hosts ${name} | awk '{print $1}'`), '127.0.1.1');
    assert.equal(await guest.sh('cat /etc/resolv.conf'), 'nameserver 10.0.2.3');
    // What this machine's resolvers know the guest finds too; where they know nothing there is nothing to compare.
    const known = await lookup(hostname(), 4).catch(() => null);
    if (known && !known.address.startsWith('127.')) {
      assert.equal(await guest.sh(`getent ahostsv4 ${hostname()} | awk 'NR == 1 {print $1}'`), known.address);
    }
    const earliest = Date.now() / 1_000 - CLOCK_SLACK_SECONDS;
    const clock = Number(await guest.sh('date +%s'));
    assert.ok(
      clock >= earliest && clock <= Date.now() / 1_000 + CLOCK_SLACK_SECONDS,
      `${clock} at ${earliest}`,
    );
    const bytes = Number(await guest.sh('df --output=size -B1 / | tail -1'));
    assert.ok(bytes > 1.8 * GIB, `${bytes} bytes of 2 GiB`);
    assert.equal(
      await guest.sh('nproc; awk \'/MemTotal/ {print ($2 > 200000) ? "all" : $2}\' /proc/meminfo'),
      '1\nall',
    );
  }

  test('a host that lost its images starts a VM from the object store, with the requested name, DNS, clock, disk, cpu and memory', async () => {
    await until('the image is stored', async () => (await image('debian-12'))?.current, {
      timeout_ms: 120_000,
    });
    await rm(berth.paths.debian_12, { recursive: true });
    const guest = await GuestInstance.running(berth, 'fetched');
    assert.match(berth.output, /the image is fetched from the object store/);
    await holdsWhatGuestsAreToHave(guest, 'fetched');
    await guest.stop();
    const refused = await cli.start(['image', 'rm', 'debian-12', (await image('debian-12'))?.current ?? ''])
      .ended;
    assert.equal(refused.code, 1);
    assert.match(refused.err, /cannot be removed: it is the current version/);
    // Neither here nor there: said at the start, with the name of what is missing.
    await rm(berth.paths.debian_12, { recursive: true });
    await rm(join(berth.paths.objects, 'images'), { recursive: true });
    await berth.client.expect(202, 'POST', `${guest.path}/vm`);
    const { reason } = await guest.becomes('failed', ({ state }) => state === 'failed');
    assert.equal(reason?.code, 'image_missing');
    assert.match(
      reason?.message ?? '',
      /"debian-12" of version [0-9a-f]{12} is not on this host, and images\/debian-12\/\S+ is missing/,
    );
  });
});

/** A test's own: it does not take that of what it stands in, and the command line's is ten minutes. */
const BUILT = { timeout: 1_800_000 };

describe('images made on the server', { skip: CANNOT_BOOT_GUESTS, ...THOROUGH, timeout: 4_000_000 }, () => {
  let berth: Installation;

  before(async () => {
    berth = await Installation.start();
    settle(berth);
  });
  after(() => berth?.dispose());

  async function done(...words: string[]): Promise<string> {
    const ran = await cli.start(words).ended;
    assert.equal(ran.code, 0, ran.err);
    return ran.out;
  }

  test(
    'debian-12-systemd runs its services under systemd, and is otherwise like debian-12',
    BUILT,
    async () => {
      assert.match(await done('image', 'build', 'debian-12-systemd'), /^debian-12-systemd [0-9a-f]{12}: /m);
      const user_data = '#!/bin/sh\nsystemctl is-active berth-agent > /root/user-data-ran\n';
      const guest = await GuestInstance.running(berth, 'managed', {
        image: 'debian-12-systemd',
        memory_mib: 512,
        user_data,
      });
      assert.equal(await guest.sh('readlink -f /proc/1/exe'), '/usr/lib/systemd/systemd');
      assert.equal(
        await guest.sh('systemctl is-active ssh sshd qemu-guest-agent berth-boot'),
        'active\nactive\nactive\nactive',
      );
      assert.equal(await guest.sh('systemctl --failed --no-legend'), '');
      // Of the first boot too: the journal is called after the machine id, which is the instance's own from the start.
      const journal = 'journalctl -q --no-pager -u berth-boot | wc -l';
      assert.notEqual(await guest.sh(journal), '0');
      assert.equal(await guest.sh('hostname; cat /etc/resolv.conf'), 'managed\nnameserver 10.0.2.3');
      assert.ok(Number(await guest.sh('df --output=size -B1 / | tail -1')) > 1.8 * GIB);
      await until('user data ran', async () => (await guest.sh('cat /root/user-data-ran')) === 'active');
      const { host_keys } = await guest.sshDetails();
      const machine_id = await guest.sh('echo kept > /root/kept; cat /etc/machine-id');
      assert.equal((await guest.flush()).consistency, 'filesystem');
      await guest.restart();
      assert.equal(await guest.shAgain('cat /root/kept'), 'kept');
      await guest.stop();
      await berth.client.expect(200, 'PATCH', guest.path, { disk_gib: 3 });
      await guest.start();
      assert.deepEqual((await guest.sshDetails()).host_keys, host_keys);
      assert.equal(await guest.shAgain('cat /etc/machine-id /root/kept'), `${machine_id}\nkept`);
      assert.ok(Number(await guest.sh('df --output=size -B1 / | tail -1')) > 2.8 * GIB);
      await guest.stop();
      const fork = await guest.fork('branch');
      await fork.start();
      await fork.learnHost();
      assert.notDeepEqual((await fork.sshDetails()).host_keys, host_keys);
      assert.notEqual(await fork.sh('cat /etc/machine-id'), machine_id);
      assert.notEqual(await fork.sh(journal), '0');
      await fork.stop();
    },
  );

  test(
    'a tarball becomes an image; without sshd it is refused, naming sshd; an unused image can be removed',
    BUILT,
    async () => {
      const folder = mkdtempSync(join(tmpdir(), 'berth-own-'));
      after(() => rmSync(folder, { recursive: true, force: true }));
      const [root, good, bad] = [
        join(folder, 'root'),
        join(folder, 'good.tar.gz'),
        join(folder, 'bad.tar.zst'),
      ];
      execFileSync('sh', [
        '-c',
        'mkdir "$1" && debugfs -R "rdump / $1" "$2" 2> /dev/null',
        'sh',
        root,
        join(berth.paths.debian_12, 'current', 'rootfs.img'),
      ]);
      for (const ours of [
        'usr/lib/berth',
        'usr/lib/modules',
        'etc/ssh/sshd_config.d/berth.conf',
        'etc/inittab',
      ])
        rmSync(join(root, ours), { recursive: true });
      execFileSync('tar', ['-C', root, '-czf', good, '.']);
      execFileSync('tar', ['-C', root, '--zstd', '-cf', bad, '--exclude=./usr/sbin/sshd', '.']);
      const refused = await cli.start(['image', 'add', 'tools', bad]).ended;
      assert.equal(refused.code, 1);
      assert.match(
        refused.err,
        /the file cannot be an image: \/usr\/sbin\/sshd is missing \(Debian's package openssh-server\)/,
      );
      assert.ok(!existsSync(join(berth.paths.images, 'tools')));
      assert.match(await done('image', 'add', 'tools', good), /^tools [0-9a-f]{12}: /m);
      const guest = await GuestInstance.running(berth, 'own', { image: 'tools' });
      assert.equal(await guest.sh('hostname'), 'own');
      await guest.stop();
      const needed = await cli.start(['image', 'rm', 'tools']).ended;
      assert.match(needed.err, /cannot be removed: instances use it: own/);
      await berth.client.expect(202, 'DELETE', guest.path);
      await guest.gone();
      await done('image', 'rm', 'tools');
      assert.ok(!existsSync(join(berth.paths.images, 'tools')));
      assert.ok(!existsSync(join(berth.paths.objects, 'images', 'tools', 'index.json')));
      assert.match(
        readFileSync(join(berth.paths.debian_12, 'current', 'manifest.json'), 'utf8'),
        /debian-12/,
      );
    },
  );
});
