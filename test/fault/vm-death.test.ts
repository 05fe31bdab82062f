/**
 * QEMU dies, or something that it needs to start is damaged: the state shows it soon, with the cause, no corrupt data is ever
 * served, and after the repair the data is there.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { readlink, rename, rm } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { isProcessAlive, killProcess } from '../../src/host/qemu/qemu-process.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { ErrorBody } from '../support/rest-client.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

/** Usually within 2 s; a busy machine takes longer. */
const NOTICE_MS = 10_000;

describe('a VM', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let after_failed_starts: string | undefined;

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'death');
    await guest.sh('head -c 24M /dev/urandom > /srv/flushed; sync');
    await guest.flush();
  });
  after(() => berth?.dispose());

  const HASH = 'sha256sum /srv/*';
  const killed = () => {
    killProcess(guest.qemu, 'SIGKILL');
    return guest.becomes('failed', ({ state }) => state === 'failed');
  };
  /** Asks for a start that must fail, and answers the reason. */
  const failsToStart = async () => {
    await berth.client.expect(202, 'POST', `${guest.path}/vm`);
    const vm = await guest.becomes('failed', ({ state }) => state !== 'starting');
    assert.equal(vm.state, 'failed', JSON.stringify(vm.reason));
    const ssh = await berth.client.request<ErrorBody>('GET', `${guest.path}/ssh`);
    assert.deepEqual([ssh.status, ssh.body.error.code], [409, 'VM_NOT_RUNNING']);
    return vm.reason ?? assert.fail('a failure has a reason');
  };

  test('is failed soon after its kill; the next start has all synced data', async () => {
    await guest.sh(`head -c 8M /dev/urandom > /srv/synced; sync`);
    const hashes = await guest.sh(HASH);
    const killed_at = Date.now();
    const vm = await killed();
    assert.equal(vm.reason?.code, 'vm_died');
    await guest.becomes('counted', ({ disk }) => disk.dirty_bytes >= 8 * 2 ** 20);
    // By when it was written, not by when a busy machine has let us read it.
    const path = `/v1/events?type=vm.failed&resource=${guest.id}`;
    const told = await until('it is told', async () => {
      const { data } = await berth.client.expect<{ data: { timestamp: string }[] }>(200, 'GET', path);
      return data[0];
    });
    const seen_after_ms = Date.parse(told.timestamp) - killed_at;
    assert(seen_after_ms < NOTICE_MS, `seen after ${seen_after_ms} ms`);
    const ssh = await berth.client.request<ErrorBody>('GET', `${guest.path}/ssh`);
    assert.deepEqual([ssh.status, ssh.body.error.code], [409, 'VM_NOT_RUNNING']);
    const restart = await berth.client.request<ErrorBody>('POST', `${guest.path}/vm/restart`);
    assert.deepEqual([restart.status, restart.body.error.code], [409, 'VM_NOT_RUNNING']);
    const started = await guest.start();
    assert.equal(started.boot, vm.boot + 1);
    assert.equal(await guest.sh(HASH), hashes);
    // The first flush after it makes durable what the killed machine had written.
    await guest.flush();
    await guest.moveThroughStore();
    assert.equal(await guest.sh(HASH), hashes);
  });

  test('with `restart: on_failure` runs again by itself after its kill, with all synced data, and says so', async () => {
    const { client } = berth;
    await client.expect(200, 'PATCH', guest.path, { restart: 'on_failure' });
    await guest.sh('head -c 1M /dev/urandom > /srv/again; sync');
    const hashes = await guest.sh(HASH);
    const { boot } = await guest.vm();
    await killed();
    const again = await guest.becomes(
      'running again',
      (vm) => vm.state === 'running' && vm.boot === boot + 1,
    );
    assert.equal(again.reason?.code, 'recovered');
    assert.equal(await guest.shAgain(HASH), hashes);
    await client.expect(200, 'PATCH', guest.path, { restart: 'never' });
  });

  test(
    'killed while the agent is down, is failed when the agent is back, and starts with all synced data',
    THOROUGH,
    async () => {
      await guest.sh(`head -c 1M /dev/urandom > /srv/alone; sync`);
      const hashes = await guest.sh(HASH);
      const { qemu } = guest;
      await berth.kill('agent');
      killProcess(qemu, 'SIGKILL');
      await berth.recovered('agent');
      const vm = await guest.becomes('failed', ({ state }) => state === 'failed', 10_000);
      assert.equal(vm.reason?.code, 'vm_died');
      await guest.start();
      assert.equal(await guest.sh(HASH), hashes);
    },
  );

  test('that was killed is saved by a flush of its overlay', THOROUGH, async () => {
    await guest.sh(`head -c 1M /dev/urandom > /srv/held; sync`);
    const hashes = await guest.sh(HASH);
    await killed();
    const { generation } = await guest.flush();
    assert.equal((await guest.vm()).disk.generation, generation);
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh(HASH), hashes);
  });

  test('that was killed is saved by a stop: the next start needs no overlay', async () => {
    await guest.sh(`head -c 8M /dev/urandom > /srv/saved; sync`);
    const hashes = await guest.sh(HASH);
    const { qemu } = guest;
    await killed();
    const stopped = await guest.stop();
    assert.equal(isProcessAlive(qemu), false);
    assert(stopped.disk.generation > 0);
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh(HASH), hashes);
  });

  test('whose overlay is lost starts from the last durable generation and says so', async () => {
    const durable = await guest.sh(HASH);
    const { generation } = await guest.flush();
    await guest.sh('echo lost > /srv/lost; sync');
    await killed();
    await berth.removeOverlays(guest.id);
    const vm = await guest.start();
    assert.equal(vm.reason?.code, 'recovered');
    assert.match(vm.reason?.message ?? '', new RegExp(`generation ${generation}`));
    assert.equal(await guest.sh(HASH), durable);
    await guest.stop();
  });

  test("whose guest panics is failed with its kernel's message, and starts with all synced data", async (t) => {
    await guest.start();
    await guest.sh('head -c 1M /dev/urandom > /srv/panicked; sync');
    const hashes = await guest.sh(HASH);
    // The session's own end may be too late to come.
    const asked = guest.sh('(sleep 0.2; echo c > /proc/sysrq-trigger) > /dev/null 2>&1 &').catch(() => '');
    const began = performance.now();
    const vm = await guest.becomes('failed', ({ state }) => state === 'failed');
    t.diagnostic(`seen ${Math.round(performance.now() - began)} ms after it was asked for`);
    assert.equal(vm.reason?.code, 'guest_panicked', JSON.stringify(vm.reason));
    // What its console said last.
    assert.match(vm.reason?.message ?? '', /^The guest's kernel panicked\. \[ *\d+\.\d+\] /);
    await asked;
    await guest.start();
    assert.equal(await guest.sh(HASH), hashes);
    await guest.stop();
  });

  /** Stopped, its overlay lost, and the largest segment rotten at `place`; answers how to mend it. */
  const rot = async (place: (length: number) => number) => {
    await guest.stop();
    const path = await largestSegment();
    const whole = readFileSync(path);
    await removeOverlaysIfAny();
    // An agent that has read it before does not read it again.
    await berth.kill('agent');
    await berth.recovered('agent');
    const rotten = Buffer.from(whole);
    randomBytes(4).copy(rotten, place(whole.length));
    writeFileSync(path, rotten);
    return { key: relative(berth.paths.objects, path), mend: () => writeFileSync(path, whole) };
  };

  test('whose segment has a corrupt directory fails to start, names it, and starts once it is repaired', async () => {
    const { key, mend } = await rot((length) => length - 200);
    const reason = await failsToStart();
    assert.equal(reason.code, 'segment_corrupt', reason.message);
    assert(reason.message.includes(key), reason.message);
    mend();
    await guest.start();
    await guest.sh(HASH);
  });

  test(
    'whose guest reads a corrupt segment never gets its data, fails naming it, and runs once it is repaired',
    THOROUGH,
    async () => {
      const hashes = await guest.sh(HASH);
      const { key, mend } = await rot((length) => length >> 1);
      await berth.client.expect(202, 'POST', `${guest.path}/vm`);
      // If it does not meet it as it boots, then now; there is no answer to this.
      const reading = guest.shAgain('cat /srv/* > /dev/null').catch(() => undefined);
      const { reason } = await guest.becomes('failed', ({ state }) => state === 'failed');
      assert.equal(reason?.code, 'segment_corrupt', reason?.message);
      assert(reason?.message.includes(key), reason?.message);
      await reading;
      mend();
      await guest.start();
      assert.equal(await guest.sh(HASH), hashes);
      await guest.stop();
    },
  );

  test('whose segment is truncated or missing fails to start, names it, and starts once it is back', async () => {
    const path = await largestSegment();
    const whole = readFileSync(path);
    await guest.stop();
    await berth.removeOverlays(guest.id);
    writeFileSync(path, whole.subarray(0, whole.length >> 1));
    const cut = await failsToStart();
    assert.equal(cut.code, 'segment_corrupt', cut.message);
    assert(cut.message.includes(relative(berth.paths.objects, path)), cut.message);
    writeFileSync(path, whole);
    await rename(path, `${path}.away`);
    const missing = await failsToStart();
    assert.equal(missing.code, 'segment_corrupt', missing.message);
    assert(missing.message.includes(relative(berth.paths.objects, path)), missing.message);
    assert.match(missing.message, /missing/);
    await rename(`${path}.away`, path);
    const vm = await guest.start();
    after_failed_starts = vm.reason?.code;
    await guest.sh(HASH);
    await guest.stop();
  });

  test('whose last boot failed before its guest ran does not report a loss', () => {
    assert.equal(after_failed_starts, 'ready');
  });

  // test/guest/images.test.ts loses the whole image.
  test(
    'whose image lost its kernel on this host starts with the kernel from the object store',
    THOROUGH,
    async () => {
      await guest.stop();
      const current = join(berth.paths.debian_12, await readlink(join(berth.paths.debian_12, 'current')));
      const kernel = join(current, 'vmlinuz');
      await rm(kernel);
      await guest.start();
      await guest.sh(HASH);
      assert(
        !existsSync(kernel),
        'into a folder of its own: running VMs may still use the files of the other',
      );
    },
  );

  /** Random data that no later generation has replaced. */
  const largestSegment = async () => {
    const [largest] = (await guest.segments()).sort((a, b) => statSync(b).size - statSync(a).size);
    return largest ?? assert.fail('there are segments');
  };
  const removeOverlaysIfAny = () => berth.removeOverlays(guest.id).catch(() => undefined);
});
