/** A drain: running VMs move to other hosts. The hosts are test doubles; test/fleet/moved-by-drain.test.ts has real ones. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cordonHost, drainHost, listHosts, showHost, uncordonHost } from '../../src/cli/server/hosts.ts';
import { listHttpRoutes } from '../../src/control-plane/ports/store.ts';
import { MOVES_A_HOST, moveVms } from '../../src/control-plane/vms/move-vm.ts';
import { listRoutes } from '../../src/control-plane/vms/route-store.ts';
import { restartFailed } from '../../src/control-plane/vms/start-vm.ts';
import { sendTraces } from '../../src/launcher/send-traces.ts';
import type { HostFacts } from '../../src/protocol/host-types.ts';
import type { HostId, InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS, type ScriptedAgent } from '../support/scripted-agent.ts';
import { stateOf } from '../support/states.ts';
import { TraceCollector } from '../support/trace-collector.ts';

const api = await apiForFile();
const { db } = api;
const owner = await api.person();
const client = api.as(owner);
const far = await listenToRemoteHosts(api);
const { log } = api.context;

const MACHINE = 'a'.repeat(64);
const facts: HostFacts = { ...FACTS, memory_mib: 64 * 1024, machine: MACHINE };
const hosts = new Map<HostId, { readonly name: string; readonly agent: ScriptedAgent }>();
for (const name of ['one', 'two']) {
  const { agent } = await far.join(name, { cpus: '64', memory: '8' });
  await agent.connect(facts);
  const { id } = await db.selectFrom('hosts').select('id').where('name', '=', name).executeTakeFirstOrThrow();
  hosts.set(id, { name, agent });
}
await api.agent.silence();
await db.updateTable('hosts').set({ last_seen_at: null }).where('name', '=', 'local').execute();

const step = () => moveVms(db, log);
const again = () => db.updateTable('vms').set({ move_after: null }).execute();
const vmOf = (id: string) => stateOf(api, owner, id);
const hostOf = async (id: string) => {
  const { host_id } = await vmOf(id);
  return hosts.get(host_id as HostId) ?? assert.fail(`a host of ${id}`);
};
const eventsOf = async (id: InstanceId) => {
  const rows = await db
    .selectFrom('events')
    .select(['type', 'actor', 'data'])
    .where('instance_id', '=', id)
    .orderBy('sequence')
    .execute();
  return rows.map(({ type, actor, data }) => [type, actor, (data as { cause?: string }).cause]);
};

/** It runs on the host of that name, and the other host is open. */
async function runningOn(name: string, change: Record<string, unknown> = {}): Promise<InstanceOut> {
  const other = name === 'one' ? 'two' : 'one';
  await uncordonHost(far.server, name);
  await cordonHost(far.server, other);
  const instance = await api.instance(owner, change);
  assert.equal((await client.post(`/v1/instances/${instance.id}/vm`)).status, 202);
  const { name: at, agent } = await hostOf(instance.id);
  assert.equal(at, name);
  await agent.assigned(instance.id);
  await agent.ready(instance.id);
  await uncordonHost(far.server, other);
  return instance;
}
const suspended = async ({ id }: InstanceOut) => {
  const { agent } = await hostOf(id);
  await agent.assigned(id, 'it is to suspend', ({ desired }) => desired === 'suspended');
  assert.deepEqual(await agent.suspended(id), { outcome: 'accepted' });
};
const notSuspended = async ({ id }: InstanceOut) => {
  const { agent } = await hostOf(id);
  await agent.assigned(id, 'it is to suspend', ({ desired }) => desired === 'suspended');
  const reason = { code: 'suspend_failed', message: 'No room.' } as const;
  await agent.observe(id, { kind: 'suspend_failed', reason });
};
/** With all that its host has of it. */
async function remove({ id }: InstanceOut) {
  const { agent } = await hostOf(id);
  const answer = await client.delete(`/v1/instances/${id}`);
  await agent.assigned(id, 'it is to be removed', ({ desired }) => desired === 'deleted');
  await agent.deleted(id);
  return answer;
}

describe('a VM of a draining host', () => {
  test('is suspended there and resumes on another host, which its owner can follow', async () => {
    const instance = await runningOn('one');
    const { id } = instance;
    const source = (await hostOf(id)).agent;
    const memory = await source.memory(id);
    assert.match(await drainHost(far.server, 'one'), /takes no new VMs, and its 1 VM move to other hosts/);
    await step();
    const leaving = await vmOf(id);
    assert.deepEqual(
      [leaving.state, leaving.reason?.code, leaving.reason?.actor],
      ['suspending', 'host_drain', 'system'],
    );
    assert.match(
      await showHost(far.server, 'one'),
      /one is drained: 0 of 1 VM moved\.\n {2}\S+ {2}suspending\n/,
    );
    await suspended(instance);
    const between = await vmOf(id);
    assert.deepEqual([between.state, between.reason?.code], ['suspended', 'host_drain']);
    await step();
    const there = await hostOf(id);
    assert.equal(there.name, 'two');
    assert.deepEqual([(await vmOf(id)).state, (await vmOf(id)).reason?.code], ['starting', 'host_drain']);
    assert.equal((await there.agent.assigned(id)).resume?.key, memory.key);
    await there.agent.ready(id, null, [], true);
    assert.equal((await vmOf(id)).reason?.code, 'resumed');
    assert.match(await showHost(far.server, 'one'), /state +drained[\s\S]*one is drained: 1 of 1 VM moved/);
    assert.match(await listHosts(far.server), /^one +drained +0/m);
    assert.deepEqual((await eventsOf(id)).slice(-2), [
      ['vm.suspended', 'system', 'host_drain'],
      ['vm.started', 'system', 'host_drain'],
    ]);
    await remove(instance);
  });

  test('is resumed again by itself if no guest of it could run there, and its connections wait', async () => {
    const instance = await runningOn('one');
    const { id } = instance;
    const { key } = await (await hostOf(id)).agent.memory(id);
    await drainHost(far.server, 'one');
    await step();
    await suspended(instance);
    await step();
    const { agent } = await hostOf(id);
    await agent.assigned(id);
    const reason = { code: 'resume_failed', message: 'The disk of the host is full.' } as const;
    await agent.observe(id, { kind: 'resume_failed', reason });
    const failed = await vmOf(id);
    assert.deepEqual([failed.state, failed.reason?.code], ['suspended', 'resume_failed']);
    assert.deepEqual(
      (await listRoutes(db, null, [id])).map(({ wake }) => wake),
      [true],
    );
    await step();
    assert.equal((await vmOf(id)).state, 'suspended', 'not at once');
    await again();
    await step();
    const next = await agent.assigned(id, 'the third boot', ({ boot }) => boot === 3);
    assert.equal(next.resume?.key, key);
    await agent.ready(id, null, [], true);
    assert.equal((await vmOf(id)).reason?.code, 'resumed');
    await remove(instance);
  });

  test('is one trace, from its leaving to the boot elsewhere', async (t) => {
    const collector = await TraceCollector.start();
    process.env['OTEL_EXPORTER_OTLP_ENDPOINT'] = collector.url;
    const sending = sendTraces({ role: 'test', traces: { sampler: 'always_on', ratio: 1 }, log });
    t.after(async () => {
      delete process.env['OTEL_EXPORTER_OTLP_ENDPOINT'];
      await collector.close();
    });
    const instance = await runningOn('one');
    const source = (await hostOf(instance.id)).agent;
    await drainHost(far.server, 'one');
    await step();
    const leaving = await source.known(instance.id);
    await suspended(instance);
    await step();
    const arriving = await (await hostOf(instance.id)).agent.assigned(instance.id);
    await sending.close();
    const [begun, finished] = ['task begin move', 'task finish move'].map((name) =>
      collector.spans.find((span) => span.name === name),
    );
    assert.deepEqual([begun?.parent_id, finished?.parent_id], [null, begun?.span_id]);
    const named = [leaving, arriving].map(({ trace_context }) => trace_context?.traceparent);
    assert.deepEqual(
      named,
      [begun, finished].map((span) => `00-${begun?.trace_id}-${span?.span_id}-01`),
    );
    await remove(instance);
  });

  test('holds connections meanwhile, although they do not wake it', async () => {
    const instance = await runningOn('one');
    const { id } = instance;
    await client.post(`/v1/instances/${id}/ports`, { port: 80, access: 'public' });
    const waking = async () => {
      const ssh = (await listRoutes(db, null)).find((route) => route.instance_id === id);
      const http = (await listHttpRoutes(db, api.context.http, null)).find(
        (route) => route.instance_id === id,
      );
      assert.equal(ssh?.wake, http?.wake);
      return ssh?.wake;
    };
    const wake = () => api.ingress.wake({ instance_id: id }, AbortSignal.timeout(10_000));
    assert.equal(await waking(), false);
    await drainHost(far.server, 'one');
    await step();
    assert.deepEqual([await waking(), await wake()], [true, { outcome: 'coming' }]);
    await suspended(instance);
    assert.deepEqual([await waking(), await wake()], [true, { outcome: 'coming' }]);
    assert.equal((await vmOf(id)).boot, 1);
    await step();
    assert.deepEqual([await waking(), await wake()], [true, { outcome: 'coming' }]);
    const there = await hostOf(id);
    await there.agent.assigned(id);
    await there.agent.ready(id, null, [], true);
    assert.equal(await waking(), false);
    await remove(instance);
  });

  test('stops and starts where its memory cannot go', async () => {
    const instance = await runningOn('one');
    const { id } = instance;
    const { agent } = await hostOf(id);
    const two = [...hosts.values()].find(({ name }) => name === 'two');
    await two?.agent.connect({ ...facts, machine: 'b'.repeat(64) });
    await two?.agent.heartbeat();
    await drainHost(far.server, 'one');
    await step();
    const leaving = await vmOf(id);
    assert.deepEqual([leaving.state, leaving.reason?.code], ['stopping', 'host_drain']);
    await agent.assigned(id, 'it is to stop', ({ desired }) => desired === 'stopped');
    // Its final flush has to wait once.
    await agent.observe(id, {
      kind: 'flush_pending',
      reason: { code: 'object_store_unavailable', message: 'Away.' },
    });
    await agent.stopped(id);
    await step();
    const there = await hostOf(id);
    assert.equal(there.name, 'two');
    assert.equal((await there.agent.assigned(id)).resume, null);
    await there.agent.ready(id);
    assert.deepEqual((await eventsOf(id)).slice(-2), [
      ['vm.stopped', 'system', 'host_drain'],
      ['vm.started', 'system', 'host_drain'],
    ]);
    await two?.agent.connect(facts);
    await two?.agent.heartbeat();
    await remove(instance);
  });

  test('stops and starts after its memory could not be saved, which the operator sees', async () => {
    const instance = await runningOn('one');
    const { id } = instance;
    await drainHost(far.server, 'one');
    await step();
    await notSuspended(instance);
    assert.match(await showHost(far.server, 'one'), /running: its memory could not be saved: No room\./);
    await step();
    assert.equal((await vmOf(id)).state, 'stopping');
    await remove(instance);
  });

  test('runs on while no other host has room, or the object store is away, and moves afterwards', async () => {
    const instance = await runningOn('one');
    const { id } = instance;
    await cordonHost(far.server, 'two');
    await drainHost(far.server, 'one');
    await step();
    assert.equal((await vmOf(id)).state, 'running');
    assert.match(await showHost(far.server, 'one'), /running: Every connected host is cordoned/);
    await uncordonHost(far.server, 'two');
    const { agent } = await hostOf(id);
    await agent.connect({ ...facts, object_store_problem: 'connection refused' });
    await agent.heartbeat();
    await again();
    await step();
    assert.match(await listHosts(far.server), /running: object storage: connection refused/);
    await agent.connect(facts);
    await agent.heartbeat();
    await again();
    const seen = (last_seen_at: Date) =>
      db.updateTable('hosts').set({ last_seen_at }).where('name', '=', 'one').execute();
    await seen(new Date(0));
    await step();
    assert.equal((await vmOf(id)).state, 'running', 'its host is silent');
    await seen(new Date());
    await step();
    assert.equal((await vmOf(id)).state, 'suspending');
    await remove(instance);
  });

  test('returns to its host if the others have filled up meanwhile', async () => {
    const instance = await runningOn('one');
    const { id } = instance;
    await drainHost(far.server, 'one');
    await step();
    await suspended(instance);
    await cordonHost(far.server, 'two');
    await step();
    assert.equal((await hostOf(id)).name, 'one');
    assert.equal((await vmOf(id)).state, 'starting');
    await remove(instance);
  });

  test('starts again after it died on the way, if its instance says so', async () => {
    const instance = await runningOn('one', { restart: 'on_failure' });
    const { id } = instance;
    const { agent } = await hostOf(id);
    await drainHost(far.server, 'one');
    await step();
    await agent.assigned(id, 'it is to suspend', ({ desired }) => desired === 'suspended');
    await agent.failed(id);
    assert.match(
      await showHost(far.server, 'one'),
      /failed: it has failed, and its last writes may be on this host/,
    );
    await restartFailed(db, api.context.quotas, log, new Date(Date.now() + 60_000));
    assert.deepEqual(
      [(await vmOf(id)).state, (await hostOf(id)).name],
      ['starting', 'one'],
      'where its writes are',
    );
    await agent.assigned(id, 'the next boot', ({ boot }) => boot === 2);
    await agent.ready(id);
    await step();
    assert.equal((await vmOf(id)).state, 'suspending', 'and then it moves');
    await remove(instance);
  });
});

describe('what a user does takes precedence', () => {
  const moving = async () => {
    const instance = await runningOn('one');
    await drainHost(far.server, 'one');
    await step();
    return instance;
  };

  test('a stop before the suspend has ended', async () => {
    const instance = await moving();
    const { agent } = await hostOf(instance.id);
    assert.equal((await client.delete(`/v1/instances/${instance.id}/vm`)).status, 202);
    await agent.assigned(instance.id, 'it is to stop', ({ desired }) => desired === 'stopped');
    await agent.stopped(instance.id);
    await step();
    const vm = await vmOf(instance.id);
    assert.deepEqual([vm.state, vm.reason?.code], ['stopped', 'stop_requested']);
    await remove(instance);
  });

  test('a stop while it is suspended', async () => {
    const instance = await moving();
    await suspended(instance);
    assert.equal((await client.delete(`/v1/instances/${instance.id}/vm`)).status, 202);
    await step();
    assert.equal((await vmOf(instance.id)).state, 'stopping');
    await remove(instance);
  });

  test('a stop after it has stopped, before it continues elsewhere', async () => {
    const instance = await moving();
    await notSuspended(instance);
    await step();
    await (await hostOf(instance.id)).agent.stopped(instance.id);
    assert.equal((await client.delete(`/v1/instances/${instance.id}/vm`)).status, 200);
    await step();
    const vm = await vmOf(instance.id);
    assert.deepEqual([vm.boot, vm.state, vm.reason?.code], [1, 'stopped', 'stop_requested']);
    await remove(instance);
  });

  test('a start while it is suspended: it is theirs, on the other host', async () => {
    const instance = await moving();
    assertError(await client.post(`/v1/instances/${instance.id}/vm`), 'CONFLICT');
    await suspended(instance);
    assert.equal((await client.post(`/v1/instances/${instance.id}/vm`)).status, 202);
    await step();
    const vm = await vmOf(instance.id);
    assert.deepEqual(
      [vm.boot, vm.reason?.code, (await hostOf(instance.id)).name],
      [2, 'start_requested', 'two'],
    );
    await remove(instance);
  });

  test('a deletion', async () => {
    const instance = await moving();
    const { agent } = await hostOf(instance.id);
    await suspended(instance);
    assert.equal((await client.delete(`/v1/instances/${instance.id}`)).status, 202);
    await step();
    assert.equal((await agent.assigned(instance.id)).desired, 'deleted');
    const boots = await db.selectFrom('vms').select('id').where('instance_id', '=', instance.id).execute();
    assert.equal(boots.length, 1);
  });
});

describe('a drain', () => {
  test('moves a bounded number at once, and an uncordon ends it', async () => {
    const all: InstanceOut[] = [];
    for (let n = 0; n < MOVES_A_HOST + 2; n++) all.push(await runningOn('one', { memory_mib: 128 }));
    await drainHost(far.server, 'one');
    await step();
    await step();
    const states = async () => {
      const found = await Promise.all(all.map(async ({ id }) => (await vmOf(id)).state));
      return ['suspending', 'running'].map((state) => found.filter((each) => each === state).length);
    };
    assert.deepEqual(await states(), [MOVES_A_HOST, 2]);
    assert.match(await uncordonHost(far.server, 'one'), /takes VMs again\. Its 6 VMs stay there/);
    await step();
    assert.deepEqual(await states(), [MOVES_A_HOST, 2]);
    const found = await Promise.all(all.map(async (each) => ({ each, state: (await vmOf(each.id)).state })));
    const one = found.find(({ state }) => state === 'suspending')?.each ?? assert.fail();
    await suspended(one);
    await step();
    assert.equal((await vmOf(one.id)).state, 'starting', 'one that has left continues');
    await Promise.all(all.map(remove));
  });

  test('ended by the death of a control plane at any point goes on with the next one', async () => {
    const instance = await runningOn('one');
    const { id } = instance;
    await drainHost(far.server, 'one');
    // Several at once, as several control planes do.
    await Promise.all([step(), step(), step()]);
    await suspended(instance);
    await Promise.all([step(), step(), step()]);
    const vm = await vmOf(id);
    assert.deepEqual([vm.state, vm.boot], ['starting', 2]);
    await remove(instance);
    await uncordonHost(far.server, 'one');
  });
});
