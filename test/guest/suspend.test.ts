/**
 * A VM's memory and disk go to object storage together, and it resumes from there: with its processes, and with the current
 * keys. One story: each test continues where the previous one ended.
 */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { hostCgroups } from '../../src/host/qemu/confinement.ts';
import { killProcess } from '../../src/host/qemu/qemu-process.ts';
import { vmFolder } from '../../src/host/vm/record.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { SshClient } from '../support/ssh-client.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

/** Counts on in tmpfs, ten times a second. */
const COUNTER =
  "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /run/count; sleep 0.1; done' > /dev/null 2>&1 < /dev/null &";

/** What the VM's own control group answers for, bytes; null where the host has none. */
function chargedBytes(instance_id: string): number | null {
  const mounts = hostCgroups();
  const [root, file] =
    mounts?.version === 2 ? [mounts.root, 'memory.current'] : [mounts?.roots.memory, 'memory.usage_in_bytes'];
  const path = join(root ?? '', 'berth', instance_id, file);
  return existsSync(path) ? Number(readFileSync(path, 'latin1')) : null;
}

describe('suspend', { skip: CANNOT_BOOT_GUESTS, timeout: 900_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let other: SshClient;
  let other_key: string;

  const memoryFolder = () => join(berth.objectFolder(guest.id), 'mem');
  const count = async () => Number(await guest.sh('cat /run/count'));
  const counts = async () => {
    const from = await count();
    await until('the process of before counts on', async () => (await count()) > from);
    return from;
  };

  before(async () => {
    berth = await borrowInstallation();
    guest = await GuestInstance.running(berth, 'sleeper');
    other = new SshClient(berth.data_dir, 'other-key');
    other.know(guest.target.known_hosts);
    const body = { name: 'other-key', public_key: other.public_key };
    other_key = (await berth.client.expect<{ id: string }>(201, 'POST', '/v1/me/ssh-keys', body)).id;
  });
  after(returnInstallation);

  test('resumes with its processes, tmpfs and host key, a correct clock, and without a revoked key', async () => {
    await guest.sh(`${COUNTER} echo here > /run/kept; echo dirty > /srv/kept`);
    const boot = await guest.bootId();
    await until('the second key gets in', async () => (await other.run(guest.target, 'true')).code === 0);
    const before_suspend = await counts();
    const suspended = await guest.suspend();
    assert.equal(suspended.reason?.code, 'suspended');
    assert.equal(suspended.disk.dirty_bytes, 0);
    assert.deepEqual(readdirSync(memoryFolder()).length, 1);
    await berth.client.expect(204, 'DELETE', `/v1/me/ssh-keys/${other_key}`);
    const vm = await guest.start();
    assert.deepEqual([vm.reason?.code, vm.boot], ['resumed', 2]);
    const refused = await other.run(guest.target, 'true');
    assert.match(refused.stderr, /Permission denied/);
    const clock = Number(await guest.sh('date +%s'));
    assert(Math.abs(clock - Date.now() / 1_000) < 20, `the guest's clock says ${clock}`);
    assert.equal(await guest.sh('cat /run/kept /srv/kept'), 'here\ndirty');
    assert.equal(await guest.bootId(), boot);
    const own = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${guest.qemu.pid}/status`, 'latin1'))?.[1];
    const charged = chargedBytes(guest.id);
    assert(
      charged === null || charged > (Number(own) * 1024) / 2,
      `${charged} bytes of ${own} KiB are limited`,
    );
    assert((await counts()) >= before_suspend);
  });

  test('resumes from the object store alone, with all writes; a later flush is correct', async () => {
    await guest.sh(
      'head -c 3000000 /dev/urandom > /srv/data; sha256sum /srv/data > /srv/sum; echo more > /srv/kept',
    );
    await guest.suspend();
    await berth.removeOverlays(guest.id);
    assert.equal((await guest.start()).reason?.code, 'resumed');
    await guest.sh(
      'echo 3 > /proc/sys/vm/drop_caches; sha256sum --quiet -c /srv/sum; echo again >> /srv/kept; sync',
    );
    const receipt = await guest.flush();
    assert(receipt.uploaded_bytes > 0);
    await counts();
    await guest.moveThroughStore();
    assert.equal(await guest.shAgain('sha256sum --quiet -c /srv/sum; cat /srv/kept'), 'more\nagain');
  });

  test('a start that runs no guest leaves it suspended and says why, and the next one resumes it', async () => {
    await guest.sh('echo kept > /run/kept');
    const { boot } = await guest.suspend();
    const { record } = vmFolder(berth.paths.vms, guest.id as InstanceId);
    // In the way of the record, which is written before the guest runs.
    mkdirSync(`${record}.tmp`);
    await berth.client.expect(202, 'POST', `${guest.path}/vm`);
    const again = await guest.becomes('suspended again', (vm) => vm.boot > boot && vm.state !== 'starting');
    assert.deepEqual([again.state, again.reason?.code], ['suspended', 'resume_failed']);
    assert.match(again.reason?.message ?? '', /memory and disk are as they were.*EISDIR/);
    rmdirSync(`${record}.tmp`);
    assert.equal((await guest.start()).reason?.code, 'resumed');
    assert.equal(await guest.shAgain('cat /run/kept'), 'kept');
  });

  test('is not resumed from memory that another start has consumed, and says so', async () => {
    await guest.sh('echo twice > /run/kept');
    await guest.suspend();
    const [newest] = readdirSync(memoryFolder()).sort().slice(-1);
    writeFileSync(join(memoryFolder(), newest ?? '', 'consumed'), 'another start');
    const vm = await guest.start();
    assert.equal(vm.reason?.code, 'cold_boot');
    assert.match(vm.reason?.message ?? '', /Another start has consumed the memory/);
    assert.equal(await guest.shAgain('cat /run/kept 2> /dev/null || echo gone'), 'gone');
  });

  test('boots cold from the same disk when its memory is damaged, and says why', async () => {
    await guest.sh('echo cold > /run/kept; echo disk > /srv/kept');
    const { disk } = await guest.suspend();
    const [newest] = readdirSync(memoryFolder()).sort().slice(-1);
    const part = join(memoryFolder(), newest ?? '', '1');
    const bytes = readFileSync(part);
    bytes[bytes.length - 1] = (bytes[bytes.length - 1] ?? 0) ^ 1;
    writeFileSync(part, bytes);
    const vm = await guest.start();
    assert.equal(vm.reason?.code, 'cold_boot');
    assert.match(vm.reason?.message ?? '', /could not be resumed.*part 1 of the memory is damaged/i);
    assert.equal(vm.disk.generation, disk.generation);
    assert.equal(await guest.shAgain('cat /srv/kept; cat /run/kept 2> /dev/null || echo gone'), 'disk\ngone');
  });

  test("has the guest's fsynced data after a kill during the resume", async () => {
    const { console_log, record } = vmFolder(berth.paths.vms, guest.id as InstanceId);
    const told = () => {
      const lines = [...readFileSync(console_log, 'latin1').matchAll(/fsynced (\d+)\r?\n/g)];
      return Number(lines.at(-1)?.[1] ?? 0);
    };
    await guest.sh(
      `setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /srv/fsynced; sync /srv/fsynced; echo fsynced $n > /dev/ttyS0; sleep 0.1; done' > /dev/null 2>&1 < /dev/null &`,
    );
    await until('the guest has fsynced', () => told() > 0);
    // Its resume waits for it.
    await guest.sh('kill -STOP $(pidof qemu-ga)');
    await guest.suspend();
    const before = told();
    await berth.client.expect(202, 'POST', `${guest.path}/vm`);
    await until('the guest has gone on', () => told() > before + 5);
    const fsynced = told();
    assert.equal(JSON.parse(readFileSync(record, 'utf8')).resuming, true);
    killProcess(guest.qemu, 'SIGKILL');
    const vm = await guest.reached('running');
    assert.equal(vm.reason?.code, 'cold_boot');
    const kept = Number(await guest.shAgain('cat /srv/fsynced'));
    assert(kept >= fsynced, `${fsynced} was fsynced, ${kept} is on the disk`);
  });

  /** Asks for a suspend, and returns while the guest stands still for it. */
  const suspending = async () => {
    const { record } = vmFolder(berth.paths.vms, guest.id as InstanceId);
    await berth.client.expect(202, 'POST', `${guest.path}/vm/suspend`);
    await until('the guest stands still', () => JSON.parse(readFileSync(record, 'utf8')).suspending, {
      timeout_ms: 60_000,
      every_ms: 1,
    });
  };

  test('completes after a kill of agent or control plane, and loses nothing', THOROUGH, async () => {
    for (const role of ['agent', 'control-plane'] as const) {
      await guest.shAgain(`${COUNTER} echo ${role} > /srv/kept; echo ${role} > /run/kept`);
      await suspending();
      await berth.kill(role);
      await berth.recovered(role);
      await guest.reached('suspended');
      assert.equal((await guest.start()).reason?.code, 'resumed');
      assert.equal(await guest.shAgain('cat /srv/kept /run/kept'), `${role}\n${role}`);
    }
  });

  test('the next agent completes a resume whose agent was killed', THOROUGH, async () => {
    await guest.suspend();
    await berth.client.expect(202, 'POST', `${guest.path}/vm`);
    await berth.kill('agent');
    await berth.recovered('agent');
    const vm = await guest.reached('running');
    assert(['resumed', 'ready'].includes(vm.reason?.code ?? ''), vm.reason?.code);
    assert.equal(await guest.shAgain('cat /run/kept'), 'control-plane');
  });

  test('fails while QEMU is stopped, also its undoing, and the guest runs on', THOROUGH, async () => {
    await guest.shAgain(`${COUNTER} echo frozen > /run/kept`);
    await suspending();
    const { runtime } = vmFolder(berth.paths.vms, guest.id as InstanceId);
    const saving = () => existsSync(join(runtime, 'memory.sock'));
    await until('the memory is being saved', saving, { timeout_ms: 60_000, every_ms: 1 });
    const printed = berth.output.length;
    killProcess(guest.qemu, 'SIGSTOP');
    await berth.printed(/resuming the guest failed/, printed, 120_000);
    killProcess(guest.qemu, 'SIGCONT');
    const { state } = await guest.becomes('settled', (vm) => ['running', 'suspended'].includes(vm.state));
    if (state === 'suspended') await guest.start();
    await until('the guest runs on', async () => (await guest.shAgain('cat /run/kept')) === 'frozen');
    await counts();
    await guest.flush();
  });

  test(
    'after a kill of QEMU the VM is failed or suspended, and its disk has everything',
    THOROUGH,
    async () => {
      await guest.shAgain('echo synced > /srv/kept; sync');
      await suspending();
      killProcess(guest.qemu, 'SIGKILL');
      const { state } = await guest.becomes('over', (vm) => ['failed', 'suspended'].includes(vm.state));
      await guest.start();
      assert.equal(await guest.shAgain('cat /srv/kept'), 'synced', state);
    },
  );

  test('a stop during a resume ends in stopped, with all writes', THOROUGH, async () => {
    await guest.shAgain('echo stopped > /srv/kept');
    await suspending();
    await guest.stop();
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.shAgain('cat /srv/kept'), 'stopped');
  });
});
