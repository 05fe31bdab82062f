/**
 * Kills in the middle of a flush, a freeze, a start, a stop and a restart: the guest sees no error, no write is lost, and the
 * request completes.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { inspect } from 'node:util';
import pg from 'pg';
import { GuestAgent } from '../../src/host/guest/guest-agent.ts';
import { isProcessAlive, killProcess } from '../../src/host/qemu/qemu-process.ts';
import { QmpClient, waitForJob } from '../../src/host/qemu/qmp-client.ts';
import { runningDatabaseUrl } from '../../src/launcher/embedded-postgres.ts';
import { present } from '../../src/shared/assert.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { GuestWriter } from '../support/guest-writer.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { Role } from '../support/processes.ts';
import { thorough } from '../support/thorough.ts';
import { until, untilWorks } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const BIG_MIB = 32;
/** A machine may have more guests to emulate than cores. */
const SLOW_MS = 150_000;

describe('a kill in the middle of', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;

  const HASH = 'sha256sum /srv/big /srv/writer.* 2> /dev/null';
  const dirty = () => guest.sh(`head -c ${BIG_MIB}M /dev/urandom > /srv/big; sync`);
  /** Begins a flush and answers once some of its data, not all, is in the store. */
  const flushUnderWay = async () => {
    const before = new Set(await guest.segments());
    const answer = berth.client
      .request('POST', `${guest.path}/vm/flush`, undefined, AbortSignal.timeout(SLOW_MS))
      .catch((error: unknown) => error);
    const under_way = async () => (await guest.segments()).some((path) => !before.has(path));
    await until('the flush uploads', under_way, { every_ms: 1 });
    return { answer };
  };
  const record = (): { frozen: boolean; released: boolean; boot: number } =>
    JSON.parse(readFileSync(join(berth.paths.vms, guest.id, 'record.json'), 'utf8'));

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'middle');
  });
  after(() => berth?.dispose());

  for (const role of ['agent', 'control-plane'] as const satisfies readonly Role[]) {
    test(`a flush, of the ${role}: no write of the guest fails, and the next flush has everything`, async () => {
      const qemu = guest.qemu;
      await dirty();
      const writer = await GuestWriter.start(guest);
      const { answer } = await flushUnderWay();
      await berth.kill(role);
      const counted = await writer.count();
      await berth.recovered(role);
      await until('the guest writes on', async () => (await writer.count()) > counted + 3);
      // Its caller hears soon: a receipt, or that it was interrupted.
      const { status } = (await answer) as { status?: number };
      assert(role === 'control-plane' || status === 200 || status === 503, `answered ${status}`);
      await untilWorks('the next flush', () => guest.flush(), { every_ms: 200 });
      assert(isProcessAlive(qemu), 'the VM was not touched');
      await writer.stop();
      const hashes = await guest.sh(`sync; ${HASH}`);
      await guest.moveThroughStore();
      assert.equal(await guest.sh(HASH), hashes);
    });
  }

  test('a flush, of the database: its commit waits, and no write of the guest fails', THOROUGH, async () => {
    await dirty();
    const writer = await GuestWriter.start(guest);
    const { answer } = await flushUnderWay();
    process.kill(await berth.postgresPid(), 'SIGKILL');
    const counted = await writer.count();
    await berth.ready();
    await answer;
    await until('the guest writes on', async () => (await writer.count()) > counted + 3);
    await untilWorks('the next flush', () => guest.flush(), { every_ms: 200 });
    await writer.stop();
    const hashes = await guest.sh(`sync; ${HASH}`);
    await guest.moveThroughStore();
    assert.equal(await guest.sh(HASH), hashes);
  });

  test(
    'a flush, of QEMU: the next boot has all that was synced, the store no torn generation',
    THOROUGH,
    async () => {
      await dirty();
      const hashes = await guest.sh(HASH);
      const { generation } = (await guest.vm()).disk;
      const { answer } = await flushUnderWay();
      killProcess(guest.qemu, 'SIGKILL');
      await guest.becomes('failed', ({ state }) => state === 'failed');
      await answer;
      const { disk } = await guest.vm();
      assert(disk.generation === generation || disk.generation === generation + 1, `${disk.generation}`);
      const verified = await berth.cli('disk', 'verify', guest.id);
      assert.equal(verified.code, 0, `${verified.out}${verified.err}`);
      await guest.start();
      assert.equal(await guest.sh(HASH), hashes);
      await guest.flush();
      await guest.moveThroughStore();
      assert.equal(await guest.sh(HASH), hashes);
    },
  );

  /** Begins a flush whose commit waits until what this answers is called; then it goes on. */
  const commitUnderWay = async () => {
    const holder = new pg.Client({ connectionString: await runningDatabaseUrl(berth.paths) });
    await holder.connect();
    await holder.query('begin');
    await holder.query('lock table generations in share mode');
    const letGo = () => holder.end();
    const answer = berth.client
      .request('POST', `${guest.path}/vm/flush`, undefined, AbortSignal.timeout(SLOW_MS))
      .catch((error: unknown) => error);
    let early: unknown;
    void answer.then((settled) => {
      early = settled;
    });
    // Not by pg_stat_activity: within a transaction it shows the connections that there were at its first look.
    const waiting =
      'select from pg_locks where not granted and pg_backend_pid() = any(pg_blocking_pids(pid)) limit 1';
    const waits = async () => {
      assert(early === undefined, `the flush ends before its commit: ${inspect(early)}`);
      return (await holder.query(waiting)).rowCount === 1;
    };
    try {
      await until('the commit waits', waits, { timeout_ms: SLOW_MS });
    } catch (error) {
      await letGo();
      throw error;
    }
    return { answer, letGo };
  };

  test('a flush, of QEMU while its commit is in flight: the committed generation stays in the store', async () => {
    await dirty();
    const hash = await guest.sh('sha256sum /srv/big');
    const { generation } = (await guest.vm()).disk;
    const { answer, letGo } = await commitUnderWay();
    const { qemu } = guest;
    killProcess(qemu, 'SIGKILL');
    await until('QEMU is gone', () => !isProcessAlive(qemu));
    await letGo();
    await answer;
    const failed = await guest.becomes('failed', ({ state }) => state === 'failed');
    assert.equal(failed.disk.generation, generation + 1, 'it was committed');
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh('sha256sum /srv/big'), hash);
  });

  test('a flush, of the control-plane at its commit: the commit is repeated, and counts once', async () => {
    const { qemu } = guest;
    await dirty();
    const { generation } = (await guest.vm()).disk;
    const { answer, letGo } = await commitUnderWay();
    await berth.kill('control-plane');
    await letGo();
    await berth.recovered('control-plane');
    await answer;
    const committed = async () => {
      const { disk } = await guest.vm();
      return disk.generation !== generation && disk.generation;
    };
    assert.equal(await until('it is committed', committed, { timeout_ms: SLOW_MS }), generation + 1);
    const verified = await berth.cli('disk', 'verify', guest.id);
    assert.equal(verified.code, 0, `${verified.out}${verified.err}`);
    assert(isProcessAlive(qemu), 'the VM was not touched');
  });

  test('the first flush after a death, of the agent as it ends: the next flush works, and has everything', async () => {
    killProcess(guest.qemu, 'SIGKILL');
    await guest.becomes('failed', ({ state }) => state === 'failed');
    await guest.start();
    await guest.sh('date +%N > /srv/small; sync');
    const { letGo } = await commitUnderWay();
    process.kill(berth.launcher_pid, 'SIGSTOP');
    try {
      await berth.kill('agent');
      await letGo();
      // What the agent would have done last, but for noting it.
      const qmp = await QmpClient.connect(join(berth.paths.vms, guest.id, 'run', 'qmp.sock'));
      const [job] = await qmp.execute('query-jobs', undefined);
      const { id } = present(job, 'the job of the flush');
      await qmp.execute('job-finalize', { id });
      await waitForJob(qmp, id, ['concluded'], { timeout_ms: 30_000 });
      await qmp.execute('job-dismiss', { id });
      qmp.close();
    } finally {
      process.kill(berth.launcher_pid, 'SIGCONT');
    }
    await berth.recovered('agent');
    const small = await guest.shAgain('date +%N >> /srv/small; sync; cat /srv/small');
    await untilWorks('the next flush', () => guest.flush());
    await guest.moveThroughStore();
    assert.equal(await guest.sh('cat /srv/small'), small);
  });

  test('a freeze, of the agent: the next agent thaws the guest', async () => {
    const qemu = guest.qemu;
    const found_frozen = async () => {
      await guest.shAgain('date +%N > /srv/dirty; sync');
      const answer = guest.flush().catch(() => undefined);
      // Nobody may start another agent before the guest was looked at.
      process.kill(berth.launcher_pid, 'SIGSTOP');
      try {
        await until('a freeze begins', () => record().frozen, { every_ms: 0 });
        await berth.kill('agent');
        const agent = new GuestAgent(join(berth.paths.vms, guest.id, 'run', 'agent.sock'));
        const status = await agent.fsfreezeStatus({ timeout_ms: SLOW_MS });
        agent.close();
        return status === 'frozen';
      } finally {
        process.kill(berth.launcher_pid, 'SIGCONT');
        await berth.recovered('agent');
        await answer;
      }
    };
    await until('an agent dies while the guest is frozen', found_frozen, { timeout_ms: SLOW_MS });
    assert.equal(
      await guest.shAgain('timeout 20 sh -c "echo thawed > /srv/thawed; sync"; cat /srv/thawed'),
      'thawed',
    );
    assert.equal(record().frozen, false);
    assert.deepEqual(guest.qemu, qemu);
    await untilWorks('the next flush', () => guest.flush());
  });

  test('a restart, of the agent: the guest restarts once and the VM is the same', THOROUGH, async () => {
    const before = await guest.vm();
    const boot_id = await guest.bootId();
    await berth.client.expect(202, 'POST', `${guest.path}/vm/restart`);
    await berth.kill('agent');
    await berth.recovered('agent');
    const vm = await guest.reached('running');
    assert.deepEqual([vm.id, vm.boot], [before.id, before.boot]);
    const second = await guest.bootId();
    assert.notEqual(second, boot_id);
    await guest.restart();
    assert.notEqual(await guest.bootId(), second, 'and the next restart works');
  });

  test('a stop, of the agent: it stops, with everything saved', THOROUGH, async () => {
    await dirty();
    const hashes = await guest.sh(HASH);
    await berth.client.expect(202, 'DELETE', `${guest.path}/vm`);
    await berth.kill('agent');
    await guest.reached('stopped');
    await berth.recovered('agent');
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh(HASH), hashes);
  });

  test('the final flush of a stop, of the agent: it stops, with everything saved', THOROUGH, async () => {
    await dirty();
    const hashes = await guest.sh(HASH);
    const stored = new Set(await guest.segments());
    await berth.client.expect(202, 'DELETE', `${guest.path}/vm?force=true`);
    const under_way = async () => (await guest.segments()).some((path) => !stored.has(path));
    await until('the final flush uploads', under_way, { every_ms: 1 });
    await berth.kill('agent');
    await guest.reached('stopped');
    await berth.removeOverlays(guest.id);
    await berth.recovered('agent');
    await guest.start();
    assert.equal(await guest.sh(HASH), hashes);
  });

  for (const moment of ['before', 'after'] as const) {
    const extent = moment === 'before' ? THOROUGH : {};
    test(
      `a start, of the agent, ${moment === 'before' ? 'as QEMU starts' : 'after the guest runs'}: the VM comes up with its data`,
      extent,
      async () => {
        await guest.start();
        const hashes = await guest.sh(HASH);
        await guest.stop();
        await berth.removeOverlays(guest.id);
        const { boot } = await guest.vm();
        await berth.client.expect(202, 'POST', `${guest.path}/vm`);
        const now = () => {
          try {
            const { boot: launched, released } = record();
            return launched === boot + 1 && (moment === 'before' || released);
          } catch {
            return false;
          }
        };
        await until('the machine is launched', now, { every_ms: 1 });
        await berth.kill('agent');
        const vm = await guest.reached('running');
        assert.equal(vm.boot, boot + 1);
        assert.equal(await guest.shAgain(HASH), hashes);
        await berth.recovered('agent');
      },
    );
  }
});
