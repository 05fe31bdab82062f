/** The control plane's side of leases: VMs of an expired host fail, and its later reports are fenced. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { sql } from 'kysely';
import { sweepOrphans } from '../../src/control-plane/disks/remove-objects.ts';
import { ensureHost, isHostLost, listLeases, markLost } from '../../src/control-plane/fleet/host-store.ts';
import { expireHosts, LeaseMonitor, marginMs } from '../../src/control-plane/fleet/lease-monitor.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { listFreed, removeInstance } from '../../src/control-plane/instances/store.ts';
import { listRoutes } from '../../src/control-plane/vms/route-store.ts';
import { restartFailed } from '../../src/control-plane/vms/start-vm.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { createLog } from '../../src/shared/log.ts';
import { apiForFile, type InstanceOut, type VmOut } from '../support/api.ts';
import { FACTS, ScriptedAgent, segmentOf } from '../support/scripted-agent.ts';
import { onlyOn, stateOf } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const { db } = api;
const LEASE_MS = 40_000;
const OVER_MS = LEASE_MS + marginMs(LEASE_MS);
const log = createLog('test', 'silent');
const never = new AbortController().signal;
const owner = await api.person();

/** Renews as a host does whose fencer watches; answers what is to be kept. */
const renew = async (agent: ScriptedAgent, kept_ms: number | null = LEASE_MS) =>
  (await agent.client.renewLease({ kept_ms }, 5_000, never)).lease_ms;

/** Than the other, so that it is chosen. */
const ROOMIER = { ...FACTS, memory_mib: 2 * FACTS.memory_mib };

async function newHost(name: string) {
  const token = randomBytes(32).toString('hex');
  const id = await ensureHost(db, name, hashToken(token));
  const agent = new ScriptedAgent(api.internal_origin, token);
  api.beforeClose(() => agent.close());
  await agent.connect(ROOMIER);
  return { id, name, agent };
}

/** All hosts but `silent` renew, and time passes beyond the lease. */
async function timePasses(silent: ScriptedAgent | null, others: readonly ScriptedAgent[]): Promise<void> {
  const watch = new LeaseMonitor();
  for (let now_ms = 0; now_ms <= OVER_MS; now_ms += 5_000) {
    for (const agent of others) if (agent !== silent) await renew(agent);
    await expireHosts(db, watch, log, () => now_ms);
  }
  for (const agent of others) if (agent !== silent) await renew(agent);
  await expireHosts(db, watch, log, () => OVER_MS);
}

test('the only host has no lease, and is never lost', async () => {
  assert.equal(await renew(api.agent, null), null);
  assert.deepEqual(await listLeases(db), []);
  const instance = await running();
  await timePasses(api.agent, []);
  assert.equal((await stateOf(api, owner, instance.id)).state, 'running');
  await api.agent.observe(instance.id, { kind: 'powered_off' });
  await api.agent.stopped(instance.id);
});

test('a lease counts from when its renewal is known, however long that takes', async () => {
  const clock_read: boolean[] = [];
  let answered = false;
  const checking = db.transaction().execute(async (tx) => {
    await sql`lock table hosts in access exclusive mode`.execute(tx);
    const checked = expireHosts(db, new LeaseMonitor(), log, () => {
      clock_read.push(answered);
      return 0;
    });
    await until('it waits for the renewals', async () => {
      const { rows } = await sql`select from pg_locks where not granted`.execute(tx);
      return rows.length > 0;
    });
    answered = true;
    return { checked };
  });
  await (await checking).checked;
  assert.deepEqual(clock_read, [true]);
});

/** On the host of that agent. */
async function running(agent = api.agent, change: Record<string, unknown> = {}): Promise<InstanceOut> {
  const instance = await api.instance(owner, change);
  const { host_id } = await agent.heartbeat();
  await onlyOn(api, host_id, async () => {
    assert.equal((await api.as(owner).post(`/v1/instances/${instance.id}/vm`)).status, 202);
  });
  await agent.assigned(instance.id);
  await agent.ready(instance.id);
  return instance;
}

describe('with a second host', () => {
  let b: Awaited<ReturnType<typeof newHost>>;
  let both: ScriptedAgent[];
  before(async () => {
    b = await newHost('b');
    both = [api.agent, b.agent];
  });

  test('both must have a lease', async () => {
    assert.equal(await renew(api.agent, null), LEASE_MS);
    assert.equal(await renew(b.agent), LEASE_MS);
    await renew(api.agent);
    assert.equal((await listLeases(db)).length, 2);
  });

  test('a lease renewed in time changes nothing', async () => {
    const instance = await running(b.agent);
    await timePasses(null, both);
    assert.equal((await stateOf(api, owner, instance.id)).state, 'running');
  });

  test('an expired host is lost: its VMs fail with an event, their ports close, and it gets no new VM', async () => {
    const instance = await running(b.agent);
    assert.deepEqual(await b.agent.commit(instance.id, 1).then(({ outcome }) => outcome), 'committed');
    const stopping = await running(b.agent);
    assert.equal((await api.as(owner).delete(`/v1/instances/${stopping.id}/vm`)).status, 202);
    await timePasses(b.agent, both);
    assert(await isHostLost(db, b.id));
    for (const { id } of [instance, stopping]) {
      const vm = await stateOf(api, owner, id);
      assert.deepEqual([vm.state, vm.reason?.code, vm.reason?.actor], ['failed', 'host_lost', 'system']);
    }
    const { reason } = await stateOf(api, owner, instance.id);
    assert.match(reason?.message ?? '', /host b is lost.*continues from generation 1/);
    const told = db.selectFrom('events').select('id').where('type', '=', 'vm.failed');
    assert.equal((await told.where('instance_id', '=', instance.id).execute()).length, 1);
    const route = (await listRoutes(db, api.host_id)).find((each) => each.instance_id === instance.id);
    assert.equal(route?.target, null);
    // A flush is refused at once; a stop that nobody could carry out says again what is the matter.
    const flush = await api
      .as(owner)
      .post<{ error: { code: string } }>(`/v1/instances/${instance.id}/vm/flush`);
    assert.deepEqual([flush.status, flush.body.error.code], [409, 'CONFLICT']);
    assert.equal((await api.as(owner).delete(`/v1/instances/${instance.id}/vm`)).status, 202);
    await loseNow(b);
    assert.equal((await stateOf(api, owner, instance.id)).reason?.code, 'host_lost');

    // Elsewhere, with the same port, and told that something may be missing.
    assert.equal((await api.as(owner).post(`/v1/instances/${instance.id}/vm`)).status, 202);
    const there = await api.agent.assigned(instance.id);
    assert.equal(there.previous_failed, true);
    const late = await b.agent.known(instance.id);
    assert.equal(there.spec.slot, late.spec.slot);
    assert.equal(there.epoch, late.epoch + 1);
    assert.equal(there.own_since, late.epoch + 1, 'what an older overlay here holds counts for nothing');
    await api.agent.ready(instance.id, { code: 'recovered', message: 'From generation 1.' });
    const vm = await stateOf(api, owner, instance.id);
    assert.deepEqual([vm.state, vm.host_id, vm.reason?.code], ['running', api.host_id, 'recovered']);

    // What the stale host still says.
    const commit = { instance_id: instance.id, vm_id: late.vm_id, epoch: late.epoch };
    const stale = await b.agent.commit(instance.id, 2, commit);
    assert.equal(stale.outcome, 'fenced');
    const lie = await b.agent.commit(instance.id, 2, { ...commit, vm_id: there.vm_id, epoch: there.epoch });
    assert.equal(lie.outcome, 'fenced', 'another host cannot speak for it');
    const report = {
      vm_id: late.vm_id,
      epoch: late.epoch,
      observed: { kind: 'stopped', commit_id: null },
    } as const;
    assert.deepEqual(await b.agent.client.report(report), { outcome: 'fenced' });
    assert.equal((await api.as(owner).get<VmOut>(`/v1/instances/${instance.id}/vm`)).body.disk.generation, 1);
    assert.equal((await api.agent.commit(instance.id, 2)).outcome, 'committed');
    // What it had uploaded by then is nobody's; what the new placement uploads for its next generation is not swept.
    const folder = await mkdtemp(join(tmpdir(), 'berth-objects-'));
    after(() => rm(folder, { recursive: true }));
    const store = await FolderStore.open(folder);
    const [committed, of_stale, next] = [
      segmentOf(instance.id, there.epoch, 2).key,
      `disks/${instance.id}/seg/${late.epoch}/2-stale`,
      `disks/${instance.id}/seg/${there.epoch}/3-next`,
    ];
    for (const key of [committed, of_stale, next]) await store.put(key, [Buffer.from(key)]);
    await sweepOrphans(db, store, log, -1_000);
    const left_over: string[] = [];
    for await (const { key } of store.list('disks/')) left_over.push(key);
    assert.deepEqual(left_over.sort(), [committed, next]);

    // Back, it finds nothing of it to run, and is a host as any.
    await renew(b.agent);
    assert.equal(await isHostLost(db, b.id), false);
    const left = await b.agent.assignments();
    assert(!left.some((each) => each.instance_id === instance.id));
    assert.equal(left.find((each) => each.instance_id === stopping.id)?.desired, 'failed');
    const again = await running(b.agent);
    assert.equal((await stateOf(api, owner, again.id)).host_id, b.id);
  });

  test('with restart: on_failure a VM of a lost host starts elsewhere by itself, and then says what was lost', async () => {
    await renew(b.agent);
    const instance = await running(b.agent, { restart: 'on_failure' });
    assert.equal((await b.agent.commit(instance.id, 1)).outcome, 'committed');
    await timePasses(b.agent, both);
    assert.equal((await stateOf(api, owner, instance.id)).reason?.code, 'host_lost');
    await restartFailed(db, api.context.quotas, log, new Date(Date.now() + 2_000));
    const there = await api.agent.assigned(instance.id);
    assert.deepEqual([there.boot, there.previous_failed], [2, true]);
    const starting = await stateOf(api, owner, instance.id);
    assert.deepEqual([starting.host_id, starting.reason?.code], [api.host_id, 'restart_on_failure']);
    const message = 'Its host is lost. It continues from generation 1.';
    await api.agent.ready(instance.id, { code: 'recovered', message });
    assert.deepEqual((await stateOf(api, owner, instance.id)).reason?.message, message);
    await renew(b.agent);
    assert(!(await b.agent.assignments()).some((each) => each.instance_id === instance.id));
  });

  test('a failed VM of a silent host is not started elsewhere: that host may have unsaved writes', async () => {
    const instance = await running(b.agent);
    await b.agent.failed(instance.id);
    await b.agent.silence();
    const long_ago = sql<Date>`'-infinity'::timestamptz`;
    await db.updateTable('hosts').set({ last_seen_at: long_ago }).where('id', '=', b.id).execute();
    const start = () =>
      api.as(owner).post<{ error: { code: string; message: string } }>(`/v1/instances/${instance.id}/vm`);
    const refused = await start();
    assert.deepEqual([refused.status, refused.body.error.code], [503, 'UNAVAILABLE']);
    assert.match(refused.body.error.message, /only copy of its last writes/);
    await b.agent.connect(ROOMIER);
    assert.equal((await start()).status, 202);
    assert.equal((await stateOf(api, owner, instance.id)).host_id, b.id);
    await b.agent.ready(instance.id);
  });

  test('a flush ends with 409 when its host is lost', async () => {
    const instance = await running(b.agent);
    const flush = api.as(owner).post(`/v1/instances/${instance.id}/vm/flush`);
    await b.agent.askedToFlush(instance.id);
    await timePasses(b.agent, both);
    assert.equal((await flush).status, 409);
  });

  test('a suspended VM of a lost host can be stopped: everything is durable', async () => {
    await renew(b.agent);
    const instance = await running(b.agent);
    await b.agent.commit(instance.id, 1);
    assert.equal((await api.as(owner).post(`/v1/instances/${instance.id}/vm/suspend`)).status, 202);
    await b.agent.suspended(instance.id);
    await timePasses(b.agent, both);
    assert.equal((await stateOf(api, owner, instance.id)).state, 'suspended');
    assert.equal((await api.as(owner).delete(`/v1/instances/${instance.id}/vm`)).status, 202);
    await loseNow(b);
    const vm = await stateOf(api, owner, instance.id);
    assert.deepEqual([vm.state, vm.reason?.code, vm.disk.generation], ['stopped', 'stop_requested', 1]);
  });

  test('a renewal between the check and the failing of VMs saves every VM', async () => {
    await renew(b.agent);
    const [lease] = (await listLeases(db)).filter(({ id }) => id === b.id);
    await renew(b.agent);
    assert.equal(await markLost(db, b.id, lease?.beat ?? 0), 'renewed');
    assert.equal(await isHostLost(db, b.id), false);
  });

  test('an instance of a lost host can be deleted; the host removes its files when it is back', async () => {
    const instance = await running(b.agent);
    await timePasses(b.agent, both);
    assert.equal((await api.as(owner).delete(`/v1/instances/${instance.id}`)).status, 202);
    assert.equal((await listFreed(db)).length, 0);
    await loseNow(b);
    assert.deepEqual(
      (await listFreed(db)).map(({ id }) => id),
      [instance.id],
    );
    await removeInstance(db, instance.id);
    assert.deepEqual(await b.agent.client.findHead(instance.id), { outcome: 'deleted' });
  });

  test('a boot elsewhere that never ran its guest does not void the writes on the first host, which is chosen again', async () => {
    for (const { ran, code } of [
      { ran: false, code: 'start_failed' },
      { ran: true, code: 'boot_timeout' },
    ] as const) {
      await renew(b.agent);
      const { id } = await running(b.agent);
      const vm = `/v1/instances/${id}/vm`;
      await loseNow(b);
      assert.equal((await api.as(owner).post(vm)).status, 202);
      const there = await api.agent.assigned(id, 'it is started elsewhere', ({ boot }) => boot === 2);
      assert.deepEqual([there.own_since, there.last_ran_epoch, there.previous_failed], [2, 0, true]);
      await api.agent.failed(id, code);
      await renew(b.agent);
      assert.equal((await api.as(owner).post(vm)).status, 202);
      const now = await stateOf(api, owner, id);
      if (ran) {
        assert.equal(now.host_id, api.host_id, 'its writes are there now');
        continue;
      }
      assert.equal(now.host_id, b.id);
      const { own_since, last_ran_epoch, previous_failed } = await b.agent.assigned(id);
      assert.deepEqual([own_since, last_ran_epoch, previous_failed], [1, 1, true]);
      await b.agent.ready(id);
    }
  });

  test('concurrent starts do not overcommit a host', async () => {
    for (const agent of both) {
      await renew(agent);
      await agent.silence();
    }
    const used = await db
      .selectFrom('vms as v')
      .innerJoin('instances as i', 'i.id', 'v.instance_id')
      .select(['v.host_id', (eb) => eb.fn.sum<number>('i.memory_mib').as('mib')])
      .where('v.state', 'in', ['starting', 'running', 'restarting', 'suspending', 'stopping'])
      .where('v.released', '=', false)
      .groupBy('v.host_id')
      .execute();
    const usedBy = (id: string) => used.find((each) => each.host_id === id)?.mib ?? 0;
    // Room for three more of 512 MiB on each.
    await api.agent.connect({ ...FACTS, memory_mib: usedBy(api.host_id) + 3 * 512 });
    await b.agent.connect({ ...FACTS, memory_mib: usedBy(b.id) + 3 * 512 });
    // Of an organisation each: those of one wait for each other at its quota already.
    const owners = await Promise.all(Array.from({ length: 12 }, () => api.person()));
    const paths = await Promise.all(
      owners.map(async (each) => `/v1/instances/${(await api.instance(each)).id}/vm`),
    );
    const starts = await Promise.all(owners.map((each, at) => api.as(each).post(paths[at] ?? '')));
    assert.deepEqual(starts.map(({ status }) => status).sort(), [
      ...Array(6).fill(202),
      ...Array(6).fill(503),
    ]);
  });

  async function loseNow({ agent }: { agent: ScriptedAgent }): Promise<void> {
    await timePasses(agent, both);
  }
});

test('a removed host that is given up already is not locked again', async () => {
  const { id } = await newHost('removed');
  await db.updateTable('hosts').set({ removed_at: new Date() }).where('id', '=', id).execute();
  const watch = new LeaseMonitor();
  for (let now_ms = 0; now_ms <= OVER_MS; now_ms += 1_000) await expireHosts(db, watch, log, () => now_ms);
  assert(await isHostLost(db, id));
  await db.transaction().execute(async (tx) => {
    await tx.selectFrom('hosts').select('id').where('id', '=', id).forUpdate().execute();
    await expireHosts(db, watch, log, () => OVER_MS);
  });
});
