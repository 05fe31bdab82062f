/**
 * Boots from one template: each guest has its own random numbers, names and disk, the disk is durable, and a VM boots also
 * when its template is damaged.
 */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { macAddress } from '../../src/host/qemu/qemu-command.ts';
import { findOrphans, killProcess } from '../../src/host/qemu/qemu-process.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { keepTemplates } from '../support/seeds.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

/** Of every process its command, the 16 random bytes that the kernel gave it at its start (AT_RANDOM), and where its stack is. */
const PROCESSES = `perl -e '
  for my $folder (glob "/proc/[0-9]*") {
    open(my $a, "<", "$folder/auxv") or next; read($a, my $auxv, 4096); my %aux = unpack "Q*", $auxv; $aux{25} or next;
    open(my $m, "<", "$folder/mem") or next; sysseek($m, $aux{25}, 0); sysread($m, my $bytes, 16) == 16 or next;
    open(my $c, "<", "$folder/comm"); chomp(my $name = <$c>);
    open(my $s, "<", "$folder/maps"); my ($stack) = map { /^(\\w+).*\\[stack\\]/ } <$s>;
    print "$name ", unpack("H*", $bytes), " $stack\\n";
  }'`;
const DRAWN = `perl -e 'syscall(318, my $b = "x" x 32, 32, 0) == 32 or die; print unpack("H*", $b)'`;

describe('fast start', { skip: CANNOT_BOOT_GUESTS, timeout: 900_000 }, () => {
  let berth: Installation;
  let one: GuestInstance;
  let other: GuestInstance;
  /** Boots told to have gone on from a template. */
  const fastStarts = ({ id }: GuestInstance) =>
    berth.output.split('\n').filter((line) => line.includes('starts from a template') && line.includes(id))
      .length;
  const templates = () => readdirSync(berth.paths.templates).filter((name) => /^[0-9a-f]{32}$/.test(name));

  before(async () => {
    berth = await Installation.start({ own_templates: true });
    const booted = await GuestInstance.running(berth, 'booted');
    await berth.printed(/a template was made/, 0, 300_000);
    // This file is one of the first, so others need not make it.
    await keepTemplates(berth.paths);
    assert.equal(fastStarts(booted), 0);
    await booted.stop();
  });
  after(() => berth?.dispose());

  test('two guests of one template share no key, no id, no random byte, no address, and know who they are', async () => {
    one = await GuestInstance.running(berth, 'one', { disk_gib: 2 });
    other = await GuestInstance.running(berth, 'other', { disk_gib: 3 });
    assert.deepEqual([fastStarts(one), fastStarts(other), templates().length], [1, 1, 1]);

    const unlike = async (what: string, command: string) => {
      const [a, b] = await Promise.all([one.sh(command), other.sh(command)]);
      assert(a !== '' && b !== '', `${what} is there`);
      assert.notEqual(a, b, what);
    };
    await unlike('host key', 'cat /etc/ssh/ssh_host_ed25519_key');
    await unlike('machine id', 'cat /etc/machine-id');
    await unlike('boot id', 'cat /proc/sys/kernel/random/boot_id');
    await unlike('/dev/urandom', 'head -c 32 /dev/urandom | od -An -tx1');
    await unlike('getrandom', DRAWN);
    await unlike('hardware address', 'cat /sys/class/net/eth0/address');

    // Those that run since the first moment are among them: init's bytes were the first that were drawn.
    const [ours, theirs] = await Promise.all([one.sh(PROCESSES), other.sh(PROCESSES)]);
    const drawnBy = (text: string) => text.split('\n').map((line) => line.split(' '));
    for (const name of ['init', 'qemu-ga', 'sshd', 'bound-ssh-log'])
      assert(
        drawnBy(ours).some(([each]) => each === name),
        `${name} is looked at: ${ours}`,
      );
    for (const column of [1, 2]) {
      const seen = new Set(drawnBy(ours).map((words) => words[column]));
      assert.deepEqual(
        drawnBy(theirs).filter((words) => seen.has(words[column] ?? '')),
        [],
      );
    }

    for (const [guest, name, gib] of [
      [one, 'one', 2],
      [other, 'other', 3],
    ] as const) {
      assert.equal(await guest.sh('hostname; cat /etc/hostname'), `${name}\n${name}`);
      assert.equal(await guest.sh('cat /sys/class/net/eth0/address'), macAddress(guest.id));
      const parameters = await guest.sh('cat /proc/cmdline');
      assert.match(parameters, new RegExp(`berth.hostname=${name} berth.instance=${guest.id} `));
      assert.doesNotMatch(parameters, /berth\.template/);
      const blocks = Number(await guest.sh("df -k / | awk 'NR == 2 { print $2 }'"));
      assert(blocks > gib * 0.9 * 2 ** 20 && blocks < gib * 2 ** 20, `${name} has ${blocks} KiB`);
      const from = Date.now() / 1_000;
      const clock = Number(await guest.sh('date +%s.%N'));
      assert(clock > from - 10 && clock < Date.now() / 1_000 + 10, `the clock of ${name} says ${clock}`);
    }
  });

  test('data survives a flush, a reboot, a stop, and a start from the object store', async () => {
    await one.sh('head -c 3000000 /dev/urandom > /srv/data; sha256sum /srv/data > /srv/sum');
    const receipt = await one.flush();
    assert(receipt.uploaded_bytes > 3_000_000);
    const boot = await one.bootId();
    const address = await one.sh('cat /sys/class/net/eth0/address');
    await one.restart();
    assert.notEqual(await one.bootId(), boot);
    assert.match(await one.shAgain('cat /proc/cmdline'), new RegExp(`berth.instance=${one.id} `));
    assert.equal(await one.sh('cat /sys/class/net/eth0/address'), address);
    await one.stop();
    await one.start();
    await one.shAgain('sha256sum --quiet -c /srv/sum');
    await one.moveThroughStore();
    await one.shAgain('sha256sum --quiet -c /srv/sum');
    assert.equal(fastStarts(one), 3);
    assert.equal(await other.sh('ls /srv'), '');
  });

  test('a VM that is killed before its first flush keeps its host key and its machine id', async () => {
    const guest = await GuestInstance.create(berth, 'killed', { disk_gib: 4 });
    await guest.start();
    const { host_keys } = await guest.learnHost();
    const identity = await guest.sh('cat /etc/ssh/ssh_host_ed25519_key.pub /etc/machine-id');
    killProcess(guest.qemu, 'SIGKILL');
    await guest.becomes('failed', ({ state }) => state === 'failed');
    await guest.start();
    assert.equal(fastStarts(guest), 2);
    assert.equal(await guest.shAgain('cat /etc/ssh/ssh_host_ed25519_key.pub /etc/machine-id'), identity);
    assert.deepEqual((await guest.sshDetails()).host_keys, host_keys);
    await guest.stop({ force: true });
  });

  test('a damaged template is removed and the VM boots, without an error for its user', async () => {
    const [key = ''] = templates();
    const memory = join(berth.paths.templates, key, 'memory');
    const bytes = readFileSync(memory);
    const middle = bytes.length >> 1;
    bytes[middle] = (bytes[middle] ?? 0) ^ 1;
    // Other tests have links to the good file.
    rmSync(memory);
    writeFileSync(memory, bytes);
    await other.stop();
    const vm = await other.start();
    assert.equal(vm.reason?.code, 'ready');
    await berth.printed(/the template is damaged/);
    assert.equal(fastStarts(other), 1);
    await other.stop();
  });

  test(
    'an agent killed while it makes or uses a template leaves no files, and the next one completes the start',
    THOROUGH,
    async () => {
      const making = join(berth.paths.templates, 'making');
      const made = () =>
        berth.output.split('\n').filter((line) => /"memory_mib":320.*a template was made/.test(line)).length;
      const bigger = await GuestInstance.create(berth, 'bigger', { memory_mib: 320 });
      await bigger.start();
      await until('a template is being made', () => existsSync(join(making, 'run')), {
        timeout_ms: 60_000,
        every_ms: 5,
      });
      await until('its machine runs', () => findOrphans(berth.paths.templates).length === 1);
      await berth.kill('agent');
      await berth.recovered('agent');
      await until(
        'nothing of it is left',
        () => !existsSync(making) && findOrphans(berth.paths.templates).length === 0,
      );
      await bigger.stop();
      await bigger.start();
      await until('it is made after all', () => made() === 1, { timeout_ms: 300_000 });
      for (const word of ['"released":false', '"awake":false', '"awake":true']) {
        await bigger.stop();
        const record = join(berth.paths.vms, bigger.id, 'record.json');
        await berth.client.expect(202, 'POST', `${bigger.path}/vm`);
        await until(
          `the start is at ${word}`,
          () => existsSync(record) && readFileSync(record, 'utf8').includes(word),
          { timeout_ms: 60_000, every_ms: 1 },
        );
        await berth.kill('agent');
        await berth.recovered('agent');
        await bigger.reached('running');
        await bigger.learnHost();
        assert.equal(await bigger.shAgain('hostname'), 'bigger');
        const machines = findOrphans(berth.paths.vms).filter((found) => found.instance_id === bigger.id);
        assert.equal(machines.length, 1);
      }
    },
  );
});
