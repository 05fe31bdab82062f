/** Suspend beyond the table of states: the host's reports, the owner of the memory, and its removal. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { freeMemory, sweepOrphans } from '../../src/control-plane/disks/remove-objects.ts';
import { knownObjects } from '../../src/control-plane/disks/segment-store.ts';
import { applyDeadlines } from '../../src/control-plane/vms/deadline-monitor.ts';
import { listOrphanedMemory } from '../../src/control-plane/vms/memory-store.ts';
import { consumedKey } from '../../src/disk-format/memory-format.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import type { ObjectStore } from '../../src/object-store/object-store.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, type VmOut } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { notificationsOf, raiseNotificationsOfEvents } from '../support/notifications.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { instanceIn, stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const { agent } = api;

const start = (id: InstanceId) => client.post<VmOut>(`/v1/instances/${id}/vm`);
const stop = (id: InstanceId) => client.delete<VmOut>(`/v1/instances/${id}/vm`);
const suspend = (id: InstanceId) => client.post<VmOut>(`/v1/instances/${id}/vm/suspend`);
const isOrphaned = async (key: string) => (await listOrphanedMemory(api.db, 1_000)).includes(key);
const isKnown = async (key: string) => (await knownObjects(api.db, [key])).has(key);
const notResumed = (id: InstanceId) =>
  agent.observe(id, {
    kind: 'resume_failed',
    reason: { code: 'resume_failed', message: 'The object store was away.' },
  });
const overdue = async (id: InstanceId) => {
  const past = { deadline_at: new Date(Date.now() - 1) };
  await api.db.updateTable('vms').set(past).where('instance_id', '=', id).execute();
  await applyDeadlines(api.db);
};
const lastEvent = async (id: InstanceId) => {
  const row = await api.db
    .selectFrom('events')
    .select('type')
    .where('instance_id', '=', id)
    .orderBy('sequence', 'desc')
    .limit(1)
    .executeTakeFirstOrThrow();
  return row.type;
};

describe('suspend and resume', () => {
  test('the host suspends and reports it, and only the next boot gets the memory, until it runs', async () => {
    const { id } = await instanceIn(api, owner, 'suspending');
    assert.equal((await agent.known(id)).desired, 'suspended');
    const waiting = client.get<VmOut>(`/v1/instances/${id}/vm?wait=suspended&timeout_seconds=60`);
    const memory = await agent.memory(id);
    assert.deepEqual(await agent.suspended(id), { outcome: 'accepted' });
    const { body } = await waiting;
    assert.deepEqual(
      [body.state, body.reason?.code, body.reason?.actor],
      ['suspended', 'suspended', api.host_id],
    );
    assert.equal(await lastEvent(id), 'vm.suspended');
    const gone = (await agent.assignments()).every((each) => each.instance_id !== id);
    assert(gone, 'nothing of it is left to do for a host');
    assert.deepEqual([await isOrphaned(memory.key), await isKnown(`${memory.key}/1`)], [false, true]);

    const started = (await start(id)).body;
    assert.deepEqual([started.state, started.boot], ['starting', 2]);
    const assignment = await agent.assigned(id);
    assert.deepEqual([assignment.resume, assignment.suspended], [memory, false]);
    assert.equal(await isOrphaned(memory.key), false);
    await agent.ready(id, null, [], true);
    assert.equal((await stateOf(api, owner, id)).reason?.code, 'resumed');
    assert.equal((await agent.known(id)).resume, null);
    assert.equal(await isOrphaned(memory.key), true);
    assert.equal(await lastEvent(id), 'vm.started');
  });

  test('after a second suspend the next boot gets only the newer memory', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    const older = await agent.memory(id);
    await start(id);
    await agent.ready(id, null, [], true);
    await suspend(id);
    const newer = await agent.memory(id);
    assert.equal(newer.generation, older.generation);
    await agent.suspended(id);
    assert.deepEqual([await isOrphaned(older.key), await isOrphaned(newer.key)], [true, false]);
    await start(id);
    const { resume } = await agent.assigned(id, 'the third boot', ({ boot }) => boot === 3);
    assert.equal(resume?.key, newer.key);
  });

  test('a boot that could not resume says so, as reason and as event', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    await start(id);
    await agent.ready(id, { code: 'cold_boot', message: 'The memory is damaged.' });
    const { reason } = await stateOf(api, owner, id);
    assert.deepEqual([reason?.code, reason?.message], ['cold_boot', 'The memory is damaged.']);
    assert.equal(await lastEvent(id), 'vm.recovered');
  });

  test('a start that failed keeps the memory for the next: the object store says whether it was used', async () => {
    for (const fail of [agent.failed.bind(agent), overdue]) {
      const { id } = await instanceIn(api, owner, 'suspended');
      const { key } = await agent.memory(id);
      await start(id);
      await agent.assigned(id);
      await fail(id);
      assert.deepEqual([(await stateOf(api, owner, id)).state, await isOrphaned(key)], ['failed', false]);
      await start(id);
      const third = await agent.assigned(id, 'the third boot', ({ boot }) => boot === 3);
      assert.equal(third.resume?.key, key);
      await agent.ready(id, null, [], true);
      assert.equal(await isOrphaned(key), true);
    }
  });

  test('a stop drops the memory, keeps the disk, and tells the host that the head is complete', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    const { key } = await agent.memory(id);
    assert.equal((await stop(id)).status, 202);
    const assignment = await agent.assigned(id);
    assert.deepEqual([assignment.desired, assignment.suspended, assignment.resume], ['stopped', true, null]);
    assert.equal(await isOrphaned(key), true);
    await agent.stopped(id);
    const { state, reason } = await stateOf(api, owner, id);
    assert.equal(state, 'stopped');
    assert.match(reason?.message ?? '', /Its saved memory is dropped/);
    await start(id);
    assert.equal((await agent.assigned(id, 'the next boot', ({ boot }) => boot === 2)).resume, null);
  });

  test('a start that ran no guest leaves it suspended, with its memory, and says why', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    const { key } = await agent.memory(id);
    await start(id);
    const waiting = client.get<VmOut>(`/v1/instances/${id}/vm?wait=running&timeout_seconds=60`);
    assert.deepEqual(await notResumed(id), { outcome: 'accepted' });
    const { body } = await waiting;
    assert.deepEqual(
      [body.state, body.boot, body.reason?.code, body.reason?.message, body.started_at],
      ['suspended', 2, 'resume_failed', 'The object store was away.', null],
    );
    assert.deepEqual([await lastEvent(id), await isOrphaned(key)], ['vm.suspended', false]);
    await raiseNotificationsOfEvents(api.db);
    const notified = (await notificationsOf(client)).filter(({ resource }) => resource?.id === id);
    assert.deepEqual(
      notified.map(({ kind }) => kind),
      ['vm.failed'],
    );
    assert.match(notified[0]?.title ?? '', /could not be resumed/);
    const gone = (await agent.assignments()).every((each) => each.instance_id !== id);
    assert(gone, 'nothing of it is left to do for a host');
    assert.deepEqual(await notResumed(id), { outcome: 'accepted' }, 'repeated');
    await start(id);
    const third = await agent.assigned(id, 'the third boot', ({ boot }) => boot === 3);
    assert.deepEqual([third.resume?.key, third.previous_failed], [key, false]);
    await agent.ready(id, null, [], true);
    assert.equal((await stateOf(api, owner, id)).reason?.code, 'resumed');
  });

  test('a stop after that drops the memory, and the next start boots', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    const { key } = await agent.memory(id);
    await start(id);
    await notResumed(id);
    assert.equal((await stop(id)).status, 202);
    assert.equal(await isOrphaned(key), true);
    assert.equal((await agent.assigned(id)).suspended, true);
    await agent.stopped(id);
    await start(id);
    assert.equal((await agent.assigned(id, 'the next boot', ({ boot }) => boot === 3)).resume, null);
  });

  test('a start without memory cannot end in suspended, whatever its host reports', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    await notResumed(id);
    const { state, reason } = await stateOf(api, owner, id);
    assert.deepEqual([state, reason?.code], ['failed', 'start_failed']);
  });

  test('connections do not start it again and again', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    await client.patch(`/v1/instances/${id}`, { wake_on_connect: true });
    const wake = () => api.ingress.wake({ instance_id: id }, AbortSignal.timeout(10_000));
    assert.equal((await wake()).outcome, 'coming');
    await notResumed(id);
    const refused = await wake();
    assert(refused.outcome === 'refused');
    assert.match(refused.why, /could not be resumed a moment ago: The object store was away/);
    const earlier = { stopped_at: new Date(Date.now() - 60_000) };
    await api.db
      .updateTable('vms')
      .set(earlier)
      .where('instance_id', '=', id)
      .where('boot', '=', 2)
      .execute();
    assert.equal((await wake()).outcome, 'coming');
    assert.notEqual((await agent.assigned(id)).resume, null);
  });

  test('it is not started on a host whose object store does not answer', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    await agent.connect({ ...FACTS, object_store_problem: 'it cannot be reached' });
    try {
      const refused = await start(id);
      assert.equal(refused.status, 503);
      assert.match(refused.text, /can read the saved memory/);
      assert.equal((await stateOf(api, owner, id)).state, 'suspended');
    } finally {
      await agent.connect(FACTS);
    }
    assert.equal((await start(id)).status, 202);
  });

  test('a connection resumes it', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    await client.patch(`/v1/instances/${id}`, { wake_on_connect: true });
    assert.deepEqual(await api.ingress.wake({ instance_id: id }, AbortSignal.timeout(10_000)), {
      outcome: 'coming',
    });
    assert.notEqual((await agent.assigned(id)).resume, null);
  });

  test('it is deleted like any other, with its rows', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    assert.equal((await client.delete(`/v1/instances/${id}`)).status, 202);
    assert.equal((await agent.assigned(id)).desired, 'deleted');
  });

  test('size and disk cannot change while there is memory that depends on them', async () => {
    const { id } = await instanceIn(api, owner, 'suspended');
    assertError(await client.patch(`/v1/instances/${id}`, { cpus: 2 }), 'CONFLICT', /is suspended/);
    await client.patch(`/v1/instances/${id}`, { labels: { a: 'b' } });
    assert.equal((await stateOf(api, owner, id)).state, 'suspended');
  });
});

async function keysOf(store: ObjectStore, id: InstanceId): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of store.list(`disks/${id}/`)) keys.push(key);
  return keys.sort();
}

describe('the objects of a memory', () => {
  const folder = mkdtempSync(join(tmpdir(), 'bmem-'));
  after(() => rmSync(folder, { recursive: true, force: true }));

  test('stay while it may be needed and are deleted once it is used, despite kills in between', async () => {
    const store = await FolderStore.open(folder);
    const { id } = await instanceIn(api, owner, 'suspended');
    const { key } = await agent.memory(id);
    const keys = [...[0, 1].map((part) => `${key}/${part}`), consumedKey(key)];
    for (const each of keys) await store.put(each, [Buffer.from('memory')]);
    const there = () => keysOf(store, id);
    const free = (from: ObjectStore = store) => freeMemory(api.db, from, api.context.log);
    await free();
    await sweepOrphans(api.db, store, api.context.log, -60_000);
    assert.deepEqual(await there(), keys);
    await start(id);
    await free();
    assert.deepEqual(await there(), keys);
    await agent.ready(id, null, [], true);
    const broken: Partial<ObjectStore> = {
      list: (prefix) => store.list(prefix),
      delete: async (each) => {
        if (each.endsWith('/1')) throw new Error('killed here');
        await store.delete(each);
      },
    };
    await assert.rejects(free(broken as ObjectStore), /killed here/);
    assert.equal(await isOrphaned(key), true);
    assert.deepEqual(
      await there(),
      keys.slice(1),
      'as long as a part is there, so is what says that it was used',
    );
    await free();
    assert.deepEqual([await there(), await isOrphaned(key)], [[], false]);
  });

  test('of a suspend stay while it goes on, however old they seem, and are deleted by the sweep if it has failed', async () => {
    const store = await FolderStore.open(folder);
    const { id } = await instanceIn(api, owner, 'suspending');
    const { key } = await agent.memory(id);
    await store.put(`${key}/0`, [Buffer.from('memory')]);
    await sweepOrphans(api.db, store, api.context.log, -60_000);
    assert.deepEqual(await keysOf(store, id), [`${key}/0`]);
    await api.db.updateTable('vms').set({ state: 'running' }).where('instance_id', '=', id).execute();
    await sweepOrphans(api.db, store, api.context.log, -60_000);
    assert.deepEqual(await keysOf(store, id), []);
  });
});

describe("a host's report of a suspend", () => {
  test('takes effect once when repeated, and never for another generation', async () => {
    const { id } = await instanceIn(api, owner, 'suspending');
    assert.deepEqual(await agent.suspended(id, { generation: 9 }), { outcome: 'unwanted' });
    assert.equal((await stateOf(api, owner, id)).state, 'suspending');
    const { vm_id, epoch } = await agent.known(id);
    const observed = { kind: 'suspended', memory: await agent.memory(id) } as const;
    const say = () => agent.client.report({ vm_id, epoch, observed });
    assert.deepEqual([await say(), await say()], [{ outcome: 'accepted' }, { outcome: 'accepted' }]);
    assert.deepEqual(await agent.client.report({ vm_id, epoch: epoch + 1, observed }), { outcome: 'fenced' });
  });

  for (const state of ['starting', 'running', 'restarting'] as const) {
    test(`while the VM is ${state} is refused: the guest must run on`, async () => {
      const { id } = await instanceIn(api, owner, state);
      assert.deepEqual(await agent.suspended(id), { outcome: 'unwanted' });
      assert.equal((await stateOf(api, owner, id)).state, state);
    });
  }

  for (const state of ['stopping', 'failed'] as const) {
    test(`while the VM is ${state} lets the machine end, and drops the memory`, async () => {
      const { id } = await instanceIn(api, owner, state);
      assert.deepEqual(await agent.suspended(id), { outcome: 'accepted' });
      assert.equal((await stateOf(api, owner, id)).state, state);
      assert.equal(await isOrphaned((await agent.memory(id)).key), true);
    });
  }

  test('of a failure leaves the VM running with its reason, and a new suspend is possible', async () => {
    const { id } = await instanceIn(api, owner, 'suspending');
    const reason = { code: 'suspend_failed', message: 'The object store is away.' } as const;
    await agent.observe(id, { kind: 'suspend_failed', reason });
    const vm = await stateOf(api, owner, id);
    assert.deepEqual([vm.state, vm.reason?.code], ['running', 'suspend_failed']);
    assert.equal((await agent.known(id)).desired, 'running');
    assert.equal((await suspend(id)).status, 202);
  });

  test('a guest that powers off meanwhile is stopped, one that dies has failed', async () => {
    const off = await instanceIn(api, owner, 'suspending');
    await agent.observe(off.id, { kind: 'powered_off' });
    assert.equal((await stateOf(api, owner, off.id)).state, 'stopping');
    const dead = await instanceIn(api, owner, 'suspending');
    await agent.failed(dead.id);
    assert.equal((await stateOf(api, owner, dead.id)).state, 'failed');
  });

  test('memory that arrives after the deadline is dropped', async () => {
    const { id } = await instanceIn(api, owner, 'suspending');
    await overdue(id);
    assert.deepEqual(await agent.suspended(id), { outcome: 'accepted' });
    assert.equal((await stateOf(api, owner, id)).state, 'failed');
    assert.equal(await isOrphaned((await agent.memory(id)).key), true);
  });
});
