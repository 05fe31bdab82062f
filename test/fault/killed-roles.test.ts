/**
 * Kills of every process but QEMU while a VM runs: the VM continues, and the restarted process adopts it. One installation
 * and one guest, whose process and kernel are still the first ones at the end of each test.
 */
import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';
import { isProcessAlive, type ProcessIdentity } from '../../src/host/qemu/qemu-process.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { ROLES, type Role } from '../support/processes.ts';
import { thorough } from '../support/thorough.ts';
import { until, untilWorks } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

describe('the death of', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let qemu: ProcessIdentity;
  let boot_id: string;
  let hash: string;

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'kills');
    qemu = guest.qemu;
    boot_id = await guest.bootId();
    await guest.sh('head -c 8M /dev/urandom > /srv/data; sync');
    hash = await guest.sh('sha256sum < /srv/data');
  });
  after(() => berth?.dispose());
  beforeEach(() => assert(isProcessAlive(qemu), 'the VM runs at the beginning of each test'));

  const untouched = async () => {
    const told = await guest.shAgain('cat /proc/sys/kernel/random/boot_id; sha256sum < /srv/data');
    assert.equal(told, `${boot_id}\n${hash}`);
    assert.deepEqual(guest.qemu, qemu);
    const vm = await guest.vm();
    assert.deepEqual([vm.state, vm.boot], ['running', 1]);
  };
  /** After `untouched`, over its connection. The agent has the VM: a write of the guest becomes durable. */
  const flushes = async () => {
    const { generation } = (await guest.vm()).disk;
    await guest.sh('date +%N > /srv/dirty; sync');
    const receipt = await untilWorks('a flush', () => guest.flush());
    assert(receipt.generation > generation && receipt.dirty_bytes > 0, JSON.stringify(receipt));
  };
  const survives = async (role: Role, signal: NodeJS.Signals) => {
    await berth.kill(role, signal);
    await berth.recovered(role);
    await untouched();
    await flushes();
  };

  for (const role of ROLES) {
    test(`the ${role} by SIGKILL leaves the VM untouched`, () => survives(role, 'SIGKILL'));
  }
  test('the agent by SIGTERM leaves the VM untouched', THOROUGH, () => survives('agent', 'SIGTERM'));

  test('the control plane and the agent by SIGKILL cuts no SSH session', async () => {
    const session = guest.sh('touch /run/began; until [ -e /run/go ]; do sleep 0.1; done; echo ended');
    await guest.sh('until [ -e /run/began ]; do sleep 0.1; done');
    await Promise.all([berth.kill('control-plane'), berth.kill('agent')]);
    await Promise.all([berth.recovered('control-plane'), berth.recovered('agent')]);
    await guest.sh('touch /run/go');
    assert.equal(await session, 'ended');
  });

  test('the database by SIGKILL leaves the VM untouched, and the launcher restarts it', async () => {
    const pid = await berth.postgresPid();
    process.kill(pid, 'SIGKILL');
    await until('the database runs anew', async () => {
      return (await berth.postgresPid().catch(() => pid)) !== pid;
    });
    await berth.ready();
    await untouched();
    await flushes();
  });

  for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
    // test/guest/s3.test.ts starts anew after a SIGTERM, its VM running.
    const extent = signal === 'SIGTERM' ? THOROUGH : {};
    test(
      `the launcher by ${signal} leaves the VM untouched, and the next start adopts it`,
      extent,
      async () => {
        const code = await berth.stop(signal);
        assert.equal(code, signal === 'SIGTERM' ? 0 : null);
        assert(isProcessAlive(qemu), 'the VM runs on alone');
        const from = berth.output.length;
        await berth.start();
        await berth.printed(/VM adopted/, from);
        await untouched();
        await flushes();
      },
    );
  }

  test(
    'everything at once by SIGKILL leaves the VM untouched, and the next start adopts it',
    THOROUGH,
    async () => {
      const pid = await berth.postgresPid();
      process.kill(pid, 'SIGKILL');
      await Promise.all([berth.kill('agent'), berth.kill('ingress'), berth.kill('control-plane')]);
      await berth.restart('SIGKILL');
      await untouched();
      await flushes();
    },
  );
});
