/**
 * The access of a hostile guest, whose user is root in it, to the host and to other guests: over the network, through its
 * devices, as a compromised QEMU process, and by exhausting resources.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { overlayPaths } from '../../src/host/disk/overlay-files.ts';
import { GATEWAY, GUESTS_END, guestAddress, HOST_END } from '../../src/host/network/addresses.ts';
import { guestNetworkOf, inNetwork } from '../../src/host/network/guest-network.ts';
import { hostCgroups, VM_UID_BASE } from '../../src/host/qemu/confinement.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { NO_TAP } from '../support/no-tap.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { until } from '../support/waiting.ts';

/** What must not be reached wherever a guest runs. */
const METADATA = ['169.254.169.254', '169.254.170.2', '168.63.129.16', '100.100.100.200'];
const PRIVATE = ['10.1.2.3', '172.17.0.1', '192.168.0.1', '100.64.0.1', '198.18.0.1', '127.0.0.2'];
/** Virtio device types (virtio 1.2, section 5): network, block, console, entropy. */
const OUR_DEVICES = ['1', '2', '3', '4'];

describe('a hostile guest', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let hostile: GuestInstance;
  let neighbour: GuestInstance;
  /** On all addresses of the host. */
  let server: Server;
  let heard = 0;

  before(async () => {
    server = createServer((socket) => {
      heard += 1;
      socket.on('error', () => undefined).end('host\n');
    });
    await new Promise<void>((resolve) => server.listen(0, '0.0.0.0', resolve));
    berth = await borrowInstallation();
    hostile = await GuestInstance.running(berth, 'hostile');
    neighbour = await GuestInstance.running(berth, 'neighbour');
  });
  after(async () => {
    server?.close();
    await returnInstallation();
  });

  const field = (guest: GuestInstance, name: string) => {
    const status = readFileSync(`/proc/${guest.qemu.pid}/status`, 'utf8');
    return new RegExp(`^${name}:[ \\t]*(.*)$`, 'm').exec(status)?.[1]?.trim() ?? '';
  };
  const uidOf = (guest: GuestInstance) => VM_UID_BASE + guest.target.port;
  /**
   * Counts, just before the rules decide, the connections that the guest begins: else what is not even tried would pass
   * for refused. A table of the test's own, in the guests' network namespace.
   */
  const nft = (...args: string[]) => inNetwork(guestNetworkOf(berth.data_dir), ['nft', ...args]);
  const countTries = (guest: GuestInstance) => {
    const rule = `ip saddr ${guestAddress(guest.target.port)} tcp flags & (syn | ack) == syn counter`;
    return nft(
      `table inet watched { chain tries { type filter hook prerouting priority -150; policy accept; ${rule}; }; }`,
    );
  };
  const tries = async () =>
    Number(/counter packets (\d+)/.exec(await nft('list', 'table', 'inet', 'watched'))?.[1]);

  test('reaches nothing of the host, its networks, metadata services or other guests: the firewall refuses each try', {
    skip: NO_TAP,
  }, async () => {
    const { port } = server.address() as { port: number };
    const host_addresses = Object.values(networkInterfaces())
      .flatMap((each) => each ?? [])
      .filter(({ family, internal }) => family === 'IPv4' && !internal)
      .map(({ address }) => address);
    const targets = [
      ...[GATEWAY, HOST_END, GUESTS_END].flatMap((address) =>
        [port, berth.port, neighbour.target.port, hostile.target.port].map(
          (each) => [address, each] as const,
        ),
      ),
      ...[neighbour, hostile].map((each) => [guestAddress(each.target.port), 22] as const),
      ...host_addresses.map((each) => [each, port] as const),
      ...[...METADATA, ...PRIVATE].map((each) => [each, 80] as const),
    ].filter(([address]) => !address.startsWith('127.'));
    const script = [
      'while read -r address port; do',
      '  if timeout 20 bash -c "exec 3<>/dev/tcp/$address/$port && head -c 1 <&3" > /dev/null 2> /tmp/why',
      '  then echo "$address $port reached"',
      '  else grep -q refused /tmp/why || echo "$address $port $(cat /tmp/why)"',
      '  fi',
      'done; true',
    ].join('\n');
    await countTries(hostile);
    const list = targets.map((target) => `${target.join(' ')}\n`).join('');
    assert.equal(await hostile.sh(script, list), '', 'each is refused, and at once');
    assert.equal(heard, 0);
    const begun = await tries();
    await nft('delete table inet watched');
    assert.ok(begun >= targets.length, `${begun} connections were begun of ${targets.length}`);
  });

  test('its process has a network namespace of its own, which is empty', { skip: NO_TAP }, async () => {
    const { pid } = hostile.qemu;
    const namespaces = [pid, neighbour.qemu.pid, process.pid].map((each) =>
      readlinkSync(`/proc/${each}/ns/net`),
    );
    assert.equal(new Set(namespaces).size, namespaces.length);
    const links = spawnSync('nsenter', [`--net=/proc/${pid}/ns/net`, 'ip', '-br', 'link'], {
      encoding: 'utf8',
    });
    assert.match(links.stdout, /^lo +DOWN .*\n$/);
  });

  test('sends nothing under another address, and its neighbour does not hear it', {
    skip: NO_TAP,
  }, async () => {
    const theirs = guestAddress(neighbour.target.port);
    const script = [
      `for from in 10.0.2.77 ${theirs}; do`,
      '  ip address add $from/32 dev eth0',
      '  ping -c 1 -W 1 -I $from 10.0.2.2 > /dev/null && echo "$from sends"',
      '  ip address del $from/32 dev eth0',
      'done',
      `ping -c 1 -W 1 ${theirs} > /dev/null && echo 'its neighbour hears it'`,
      "ping -c 1 -W 20 10.0.2.2 > /dev/null && echo 'itself, it sends'",
    ].join('\n');
    assert.equal(await hostile.sh(script), 'itself, it sends');
  });

  test('finds no device but its disk, its network, its lines and a source of randomness', async () => {
    const script = [
      'printf "%d " $(cat /sys/bus/virtio/devices/*/device); echo',
      'ls /sys/block | grep -vE "^(loop|ram|zram)[0-9]+$"',
      'cat /sys/block/vda/serial; echo',
      'echo $(($(cat /sys/block/vda/size) * 512))',
      'cat /sys/class/virtio-ports/*/name',
      'for type in 9p virtiofs; do',
      '  modprobe $type 2> /dev/null',
      '  mount -t $type host /mnt 2> /dev/null && echo "$type mounted"',
      'done; true',
    ].join('\n');
    const [types = '', ...more] = (await hostile.sh(script)).split('\n').filter((line) => line !== '');
    assert.deepEqual([...new Set(types.trim().split(' '))].sort(), OUR_DEVICES);
    const [disk, serial, bytes, ...lines] = more;
    assert.deepEqual([disk, serial, bytes], ['vda', 'berth-disk', String(2 * 2 ** 30)]);
    assert.deepEqual(lines.sort(), ['berth.execs', 'org.qemu.guest_agent.0']);
  });

  test('learns no path of the host from any file or device that it can read', async () => {
    const told = await hostile.sh(
      [
        'modprobe qemu_fw_cfg 2> /dev/null',
        'cat /proc/cmdline /proc/mounts /sys/class/dmi/id/* 2> /dev/null',
        'find /sys/firmware/qemu_fw_cfg/by_name -type d -name "opt*" 2> /dev/null',
        'cat /sys/firmware/qemu_fw_cfg/by_name/etc/*/raw 2> /dev/null | tr -c "[:print:]" "\\n"; true',
      ].join('; '),
    );
    assert.match(told, /console=/, 'it can read');
    for (const secret of [berth.data_dir, neighbour.id, process.cwd()]) {
      assert.ok(!told.includes(secret), `${secret} is told`);
    }
    assert.doesNotMatch(told, /\bopt\//);
  });

  test('its process has its own user, sandbox and control group', () => {
    for (const guest of [hostile, neighbour]) {
      const uid = String(uidOf(guest));
      assert.deepEqual(field(guest, 'Uid').split(/\s+/), [uid, uid, uid, uid]);
      assert.equal(field(guest, 'Groups'), '');
      assert.equal(BigInt(`0x${field(guest, 'CapEff')}`), 0n);
      assert.equal(BigInt(`0x${field(guest, 'CapPrm')}`), 0n);
      assert.deepEqual([field(guest, 'NoNewPrivs'), field(guest, 'Seccomp')], ['1', '2']);
      const groups = readFileSync(`/proc/${guest.qemu.pid}/cgroup`, 'utf8');
      if (hostCgroups() !== null) assert.match(groups, new RegExp(`/berth/${guest.id}$`, 'm'));
    }
  });

  test('its process has no file of the host open but its own overlay, the image and its log', () => {
    const folder = `/proc/${hostile.qemu.pid}/fd`;
    const files = readdirSync(folder)
      .map((fd) => ({ path: readlinkSync(join(folder, fd)), fd }))
      .filter(({ path }) => path.startsWith('/') && !path.startsWith('/dev/'));
    assert.ok(files.some(({ path }) => path === overlayPaths(berth.paths.overlays, hostile.id).overlay));
    for (const { path, fd } of files) {
      const own = path.includes(hostile.id);
      const flags = /^flags:\s+([0-7]+)$/m.exec(
        readFileSync(`/proc/${hostile.qemu.pid}/fdinfo/${fd}`, 'utf8'),
      );
      const writes = (Number.parseInt(flags?.[1] ?? '1', 8) & 3) !== 0;
      assert.ok(
        own || (path.startsWith(berth.paths.images) && !writes),
        `${path}, ${writes ? 'written' : 'read'}`,
      );
    }
  });

  test('its process sees the system’s programs, its image, its overlay and its sockets, and no other process', () => {
    const { paths } = berth;
    const view = `/proc/${hostile.qemu.pid}/root`;
    const overlay = (guest: GuestInstance) => overlayPaths(paths.overlays, guest.id).overlay;
    const own = [overlay(hostile), join(paths.vms, hostile.id, 'run', 'qmp.sock'), '/etc/resolv.conf'];
    assert.deepEqual(
      own.filter((path) => !existsSync(view + path)),
      [],
    );
    const others = [paths.secret_key, paths.run, paths.objects, overlay(neighbour), import.meta.filename];
    const hosts = ['/etc/shadow', '/etc/passwd', '/proc/self', '/sys/class', '/root', '/home', '/var'];
    assert.deepEqual(
      [...others, ...hosts].filter((path) => existsSync(view + path)),
      [],
    );
    const alone = [hostile.qemu.pid, neighbour.qemu.pid, process.pid].map((pid) =>
      readlinkSync(`/proc/${pid}/ns/pid`),
    );
    assert.equal(new Set(alone).size, alone.length);
  });

  test('its user can read only the image and its own files of the installation', async () => {
    const { paths } = berth;
    const closed = [
      ...[
        paths.secret_key,
        paths.host_token,
        paths.ingress_token,
        paths.postgres_log,
        paths.agent_api_socket,
        paths.objects,
      ],
      ...[join(paths.postgres, 'cluster', 'PG_VERSION'), overlayPaths(paths.overlays, neighbour.id).overlay],
      ...[join(paths.vms, neighbour.id, 'record.json'), '/etc/shadow', `/proc/${process.pid}/environ`],
      ...(await neighbour.segments()),
    ];
    const script =
      'for path; do if [ -d "$path" ]; then ls "$path"; else cat "$path"; fi > /dev/null 2>&1 && echo "$path"; done; true';
    const uid = uidOf(hostile);
    const gid = Number(field(hostile, 'Gid').split(/\s+/)[0]);
    const readable = (list: string[]) =>
      spawnSync('sh', ['-c', script, 'try', ...list], { uid, gid, cwd: '/', encoding: 'utf8' }).stdout;
    assert.equal(readable(closed), '');
    const own = overlayPaths(paths.overlays, hostile.id).overlay;
    assert.equal(readable([own]), `${own}\n`, 'else this proves nothing');
  });

  test('its user cannot replace its sockets, which the agent opens and creates by path', async () => {
    await hostile.flush();
    const runtime = join(berth.paths.vms, hostile.id, 'run');
    const { uid, mode } = statSync(runtime);
    assert.deepEqual([uid, mode & 0o777], [0, 0o711]);
    const script =
      'for name in qmp.sock agent.sock console.sock flush.sock lazy.sock; do for way in "rm -f" "ln -sfT /etc/passwd"; do $way "$0/$name" 2> /dev/null && [ ! -S "$0/$name" ] && echo "$way $name"; done; done; true';
    const gid = Number(field(hostile, 'Gid').split(/\s+/)[0]);
    const user = { uid: uidOf(hostile), gid };
    const run = spawnSync('sh', ['-c', script, runtime], { ...user, cwd: '/', encoding: 'utf8' });
    assert.deepEqual([run.stdout.replaceAll(/^rm -f (flush|lazy)\.sock\n/gm, ''), run.status], ['', 0]);
  });

  test('at 100 % CPU, with a full disk and a fork bomb, does not starve the others, and can be stopped', async () => {
    const full =
      'head -c 1M /dev/urandom > /srv/a; fallocate -l "$(df --output=avail -B1 / | tail -1)" /srv/full; ';
    assert.match(
      await hostile.sh(`${full} dd if=/dev/zero of=/srv/more bs=1M count=64 2>&1; true`),
      /No space left/,
    );
    await hostile.sh('for i in 1 2 3 4; do nohup sh -c "while :; do :; done" > /dev/null 2>&1 & done');
    // Its ssh may not come back: not waited for.
    const bomb = berth.ssh.start(hostile.target, { command: 'bash -c "b() { b | b & }; b"; sleep 600' });
    try {
      const busy = () =>
        Number(readFileSync(`/proc/${hostile.qemu.pid}/stat`, 'utf8').split(') ')[1]?.split(' ')[11]);
      const from = busy();
      await until('it works hard', () => busy() > from + 300);
      for (let round = 0; round < 3; round++) {
        await neighbour.flushFrozen(async () =>
          assert.equal(
            await neighbour.sh(`echo served ${round}; head -c 1M /dev/urandom > /srv/b; sync`),
            `served ${round}`,
          ),
        );
        await berth.client.expect(200, 'GET', '/v1/instances');
      }
      assert.equal((await neighbour.vm()).state, 'running');
      await hostile.stop({ force: true });
    } finally {
      bomb.kill();
    }
    assert.equal(await neighbour.shAgain('echo still served'), 'still served');
  });
});
