/** Deletion of an instance: from every state, complete and final. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { freeDeleted } from '../../src/control-plane/disks/remove-objects.ts';
import { insertSamples } from '../../src/control-plane/vms/metric-store.ts';
import { VM_STATES } from '../../src/control-plane/vms/model.ts';
import { spreadsOf } from '../../src/host/calls/vm-meters.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const folder = await mkdtemp(join(tmpdir(), 'berth-objects-'));
after(() => rm(folder, { recursive: true, force: true }));
const store = await FolderStore.open(folder);

async function objects(prefix: string): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of store.list(prefix)) keys.push(key);
  return keys;
}

describe('202, then 404', () => {
  for (const state of VM_STATES) {
    test(`a VM that is ${state} is deleted with its objects, name and row`, async () => {
      const { id, name } = await instanceIn(api, owner, state);
      const path = `/v1/instances/${id}`;
      for (const segment of [1, 2]) await store.put(`disks/${id}/${segment}`, [Buffer.from('data')]);
      await store.put(`disks/${id}x/1`, [Buffer.from("another's")]);
      await insertSamples(api.db, 60, [{ instance_id: id, at_ms: 0, minutes: 1, spreads: spreadsOf([]) }]);
      const answer = await client.delete<InstanceOut>(path);
      assert.deepEqual([answer.status, answer.body.deleting], [202, true]);
      if (state !== 'stopped') {
        // Until the host says so nothing is freed.
        await freeDeleted(api.db, store, api.context.log);
        assert.equal((await client.get<InstanceOut>(path)).body.deleting, true);
        assert.equal((await objects(`disks/${id}/`)).length, 2);
        assert.equal(
          (await client.post('/v1/instances', { name })).status,
          409,
          'the name is taken until then',
        );
        assert.equal((await api.agent.known(id)).desired, 'deleted');
        await api.agent.deleted(id);
      }
      await freeDeleted(api.db, store, api.context.log);
      assertError(await client.get(path), 'NOT_FOUND');
      assertError(await client.get(`${path}/vm`), 'NOT_FOUND');
      assertError(await client.delete(path), 'NOT_FOUND');
      assert.deepEqual(await objects(`disks/${id}/`), []);
      assert.equal((await objects(`disks/${id}x/`)).length, 1);
      for (const table of [
        ...(['vms', 'disks', 'generations', 'flushes', 'instance_ssh_keys', 'metric_samples'] as const),
      ]) {
        const rows = await api.db.selectFrom(table).selectAll().where('instance_id', '=', id).execute();
        assert.deepEqual(rows, [], table);
      }
      assert.equal((await client.post('/v1/instances', { name })).status, 201, 'the name is free again');
    });
  }

  test('failures that the deletion causes raise no notification', async () => {
    const { id } = await instanceIn(api, owner, 'suspending');
    await client.delete(`/v1/instances/${id}`);
    await api.agent.failed(id);
    await raiseNotificationsOfEvents(api.db);
    const { body } = await client.get<{ data: { type: string }[] }>(`/v1/events?resource=${id}`);
    assert.equal(body.data[0]?.type, 'instance.deleted', 'the last that is told of it');
    await api.agent.deleted(id);
  });

  test('of an instance with several boots frees all of them', async () => {
    const { id } = await instanceIn(api, owner, 'failed');
    await client.post(`/v1/instances/${id}/vm`);
    await api.agent.assigned(id, 'boot 2', (each) => each.boot === 2);
    await client.delete(`/v1/instances/${id}`);
    await api.agent.deleted(id);
    await freeDeleted(api.db, store, api.context.log);
    assertError(await client.get(`/v1/instances/${id}`), 'NOT_FOUND');
  });

  test('an instance whose objects cannot be removed delays no other', async (t) => {
    const [stuck, other] = [await api.instance(owner), await api.instance(owner)];
    for (const { id } of [stuck, other]) await client.delete(`/v1/instances/${id}`);
    const list = store.list.bind(store);
    const listing = t.mock.method(store, 'list', (prefix: string) => {
      if (prefix.includes(stuck.id)) throw new Error('an I/O error');
      return list(prefix);
    });
    await assert.rejects(freeDeleted(api.db, store, api.context.log), AggregateError);
    assert.equal((await client.get<InstanceOut>(`/v1/instances/${stuck.id}`)).body.deleting, true);
    assertError(await client.get(`/v1/instances/${other.id}`), 'NOT_FOUND');
    listing.mock.restore();
    await freeDeleted(api.db, store, api.context.log);
    assertError(await client.get(`/v1/instances/${stuck.id}`), 'NOT_FOUND');
  });

  test('repeated or sent twenty times at once, it changes nothing and appends one event', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => client.delete<InstanceOut>(`/v1/instances/${id}`)),
    );
    assert.deepEqual([...new Set(answers.map((each) => each.status))], [202]);
    const events = await api.db
      .selectFrom('events')
      .select('type')
      .where('instance_id', '=', id)
      .where('type', '=', 'instance.deleted')
      .execute();
    assert.equal(events.length, 1);
  });

  test('a caller who waits for its VM gets 404', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    await client.delete(`/v1/instances/${id}`);
    const waiting = client.get(`/v1/instances/${id}/vm?wait=running&timeout_seconds=60`);
    await api.agent.deleted(id);
    await freeDeleted(api.db, store, api.context.log);
    assertError(await waiting, 'NOT_FOUND');
  });
});

describe('400', () => {
  test('a body with fields', async () => {
    const { id } = await api.instance(owner);
    assertError(await client.delete(`/v1/instances/${id}`, { force: true }), 'INVALID_REQUEST', /force/);
    assert.equal((await client.get<InstanceOut>(`/v1/instances/${id}`)).body.deleting, false);
  });
});

describe('403', () => {
  test('a key that may only read', async () => {
    const { id } = await api.instance(owner);
    const { key } = await makeKey(api.db, owner, 'instances:read vm:write');
    assertError(await api.as(key).delete(`/v1/instances/${id}`), 'FORBIDDEN', /instances:write/);
  });
});

describe('409', () => {
  test('a change of an instance that is being deleted', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await client.delete(`/v1/instances/${id}`);
    assertError(await client.patch(`/v1/instances/${id}`, { labels: {} }), 'CONFLICT', /being deleted/);
    const keys = await client.put(`/v1/instances/${id}/ssh-keys`, { mode: 'account' });
    assertError(keys, 'CONFLICT', /being deleted/);
  });
});
