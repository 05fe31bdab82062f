/** Forks: what they inherit and what not, and when there is none. What they hold is in test/host/generations-model.test.ts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { openDataKeys } from '../../src/control-plane/disks/data-keys.ts';
import { setQuota } from '../../src/control-plane/organisations/quotas.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut, newName } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { generationScene, makeGenerations } from '../support/generations.ts';
import { HOST_KEY, segmentOf } from '../support/scripted-agent.ts';
import { instanceIn } from '../support/states.ts';

type Forked = { readonly forked_from?: unknown } | undefined;

const api = await apiForFile();
const { db, agent, context } = api;
const owner = await api.person();
const client = api.as(owner);
const { path, withGenerations, read, layers, events, audited } = generationScene(api, owner);

const numbers = async (id: string) => {
  const { body } = await client.get<Page<{ generation: number }>>(path(id, 'generations'));
  return body.data.map(({ generation }) => generation);
};

/** What each of an instance's keys is for. */
const keyUses = async (id: InstanceId) => {
  const keys = (await openDataKeys(db, context.disk_keys, id))?.keys ?? [];
  const ofUse = (use: string) =>
    keys
      .filter((key) => key.use === use)
      .map(({ key_id }) => key_id)
      .sort();
  return { disk: ofUse('disk'), memory: ofUse('memory'), reading: ofUse('reading') };
};
const ownKey = async (id: InstanceId) => (await keyUses(id)).disk[0] ?? assert.fail('no key');
const commitWith = async (id: InstanceId, generation: number, key_id: string) => {
  const { epoch } = await agent.known(id);
  return agent.commit(id, generation, { segments: [{ ...segmentOf(id, epoch, generation), key_id }] });
};

describe('POST …/fork 201', () => {
  test('inherits size and settings, not labels, keys, host key or wake', async () => {
    const settings = {
      ...{ cpus: 2, memory_mib: 1024, disk_gib: 4, auto_flush_seconds: 7 },
      generations_keep: { last: 5, daily_days: 3 },
    };
    const parent = await instanceIn(api, owner, 'running');
    await db
      .updateTable('instances')
      .set({ ...{ cpus: 2, memory_mib: 1024, disk_gib: 4, auto_flush_seconds: 7 }, keep_last: 5 })
      .set({ keep_daily_days: 3, wake_on_connect: true, idle_timeout_seconds: 900, restart: 'on_failure' })
      .set({ labels: '{"a":"b"}', ssh_key_mode: 'explicit' })
      .where('id', '=', parent.id)
      .execute();
    await agent.commit(parent.id, 1);
    const name = newName();
    const answer = await client.post<InstanceOut>(path(parent.id, 'fork'), { name });
    assert.equal(answer.status, 201, answer.text);
    const { body: fork } = answer;
    assert.deepEqual(fork, await read(fork.id));
    assert.notEqual(fork.id, parent.id);
    for (const [field, value] of Object.entries({ ...settings, name, image: 'debian-12', labels: {} }))
      assert.deepEqual(fork[field as keyof InstanceOut], value, field);
    assert.deepEqual(
      [fork.wake_on_connect, fork.idle_timeout_seconds, fork.restart],
      [false, 900, 'on_failure'],
    );
    assert.deepEqual([fork.vm.state, fork.vm.boot, fork.vm.id], ['stopped', 0, null]);
    assert.equal(fork.disk.generation, 1);
    assert.equal(fork.disk.durable_at, (await read(parent.id)).disk.durable_at);
    const rows = await db
      .selectFrom('instances')
      .select(['ssh_port', 'host_keys', 'ssh_key_mode'])
      .where('id', 'in', [parent.id, fork.id])
      .orderBy('id')
      .execute();
    assert.notEqual(rows[0]?.ssh_port, rows[1]?.ssh_port);
    assert.deepEqual(rows[0]?.host_keys, [HOST_KEY]);
    assert.deepEqual([rows[1]?.host_keys, rows[1]?.ssh_key_mode], [null, 'account']);
    const [event, ...more] = await events(fork.id);
    assert.deepEqual([event?.type, more.length], ['instance.forked', 0]);
    const forked_from = { instance_id: parent.id, generation: 1, dirty_bytes: 0 };
    assert.deepEqual((event?.data as Forked)?.forked_from, forked_from);
    assert.deepEqual([fork.forked_from, parent.forked_from], [forked_from, null]);
    assert.deepEqual(await audited(fork.id), ['instance.fork']);
  });
  test('tells how much a running parent had not flushed by then, also after the parent’s deletion', async () => {
    const parent = await instanceIn(api, owner, 'running');
    await agent.commit(parent.id, 1);
    await agent.heartbeat([{ instance_id: parent.id, dirty_bytes: 12 * 2 ** 20 }]);
    const { body: fork } = await client.post<InstanceOut>(path(parent.id, 'fork'), { name: newName() });
    const forked_from = { instance_id: parent.id, generation: 1, dirty_bytes: 12 * 2 ** 20 };
    assert.deepEqual(fork.forked_from, forked_from);
    await client.delete(`/v1/instances/${parent.id}`);
    assert.deepEqual((await read(fork.id)).forked_from, forked_from);
  });
  test('begins with the given generation, else with the last, and continues its numbers', async () => {
    const parent = await withGenerations(3);
    for (const generation of [2, undefined]) {
      const { body } = await client.post<InstanceOut>(path(parent.id, 'fork'), {
        name: newName(),
        generation,
      });
      const wanted = generation ?? 3;
      assert.equal(body.disk.generation, wanted);
      assert.deepEqual(await numbers(body.id), [wanted]);
      assert.deepEqual(await layers(body.id, wanted), await layers(parent.id, wanted));
      await client.post(path(body.id, 'vm'));
      await agent.assigned(body.id);
      assert.equal((await agent.commit(body.id, wanted + 1)).outcome, 'committed');
      assert.deepEqual(await numbers(body.id), [wanted + 1, wanted]);
    }
    assert.deepEqual(await numbers(parent.id), [3, 2, 1]);
  });
  test('decrypts earlier writes of its parent and grandparent, and no later ones', async () => {
    const parent = await instanceIn(api, owner, 'running');
    await commitWith(parent.id, 1, await ownKey(parent.id));
    const fork = (await client.post<InstanceOut>(path(parent.id, 'fork'), { name: newName() })).body;
    await client.post(path(fork.id, 'vm'));
    await agent.assigned(fork.id);
    await commitWith(fork.id, 2, await ownKey(fork.id));
    const second = (await client.post<InstanceOut>(path(fork.id, 'fork'), { name: newName() })).body;
    const [a, b, c] = [await keyUses(parent.id), await keyUses(fork.id), await keyUses(second.id)];
    const [of_parent, of_fork] = [a.reading, b.reading.filter((id) => !a.reading.includes(id))];
    assert.deepEqual([of_parent.length, of_fork.length], [1, 1]);
    assert.deepEqual(c.reading, [...of_parent, ...of_fork].sort());
    // What each writes with, and memory, is in nobody else's hands.
    const writing = [a, b, c].flatMap(({ disk, memory }) => [...disk, ...memory]);
    assert.equal(new Set([...writing, ...c.reading]).size, 8);
  });

  test("a running parent's later writes have another key: its current flush completes with the old one, later flushes do not", async () => {
    const parent = await instanceIn(api, owner, 'running');
    const before = await ownKey(parent.id);
    await commitWith(parent.id, 1, before);
    await client.post(path(parent.id, 'fork'), { name: newName() });
    assert.notEqual(await ownKey(parent.id), before);
    assert.equal((await commitWith(parent.id, 2, before)).outcome, 'committed');
    await assert.rejects(commitWith(parent.id, 3, before), /with 400.*retired key/);
    assert.equal((await commitWith(parent.id, 3, await ownKey(parent.id))).outcome, 'committed');
    // A key of another instance is none of this one's.
    await assert.rejects(commitWith(parent.id, 4, `dk_${'0'.repeat(32)}`), /with 400/);
  });

  test('repeated forks of an unchanged parent create no key', async () => {
    const parent = await instanceIn(api, owner, 'running');
    await commitWith(parent.id, 1, await ownKey(parent.id));
    for (let i = 0; i < 3; i++) await client.post(path(parent.id, 'fork'), { name: newName() });
    const { disk, reading } = await keyUses(parent.id);
    assert.deepEqual([disk.length, reading.length], [1, 1]);
  });

  test('repeated with one Idempotency-Key creates one fork', async () => {
    const parent = await withGenerations(1);
    const options = { headers: { 'idempotency-key': newId('evt') } };
    const body = { name: newName() };
    const first = await client.post<InstanceOut>(path(parent.id, 'fork'), body, options);
    const again = await client.post<InstanceOut>(path(parent.id, 'fork'), body, options);
    assert.deepEqual([again.status, again.body], [201, first.body]);
  });
});

describe('POST …/fork 400, 404', () => {
  test('a malformed body', async () => {
    const { id } = await withGenerations(1);
    for (const body of [{}, { name: 'A' }, { name: newName(), generation: 0 }, { name: newName(), cpus: 2 }])
      assertError(await client.post(path(id, 'fork'), body), 'INVALID_REQUEST');
  });
  test('an unknown generation', async () => {
    const { id } = await withGenerations(1);
    const answer = await client.post(path(id, 'fork'), { name: newName(), generation: 2 });
    assertError(answer, 'NOT_FOUND');
  });
});

describe('POST …/fork 409', () => {
  test('a parent without a flush', async () => {
    const { id } = await api.instance(owner);
    const answer = await client.post(path(id, 'fork'), { name: newName() });
    assertError(answer, 'CONFLICT');
    assert.match(answer.text, /Nothing of the disk is saved yet/);
  });
  test('a taken name, which leaves nothing behind', async () => {
    const { id, name } = await withGenerations(1);
    const before = await db.selectFrom('instances').select('id').execute();
    assertError(await client.post(path(id, 'fork'), { name }), 'CONFLICT');
    assert.equal((await db.selectFrom('instances').select('id').execute()).length, before.length);
  });
  test('a parent that is being deleted', async () => {
    const { id } = await withGenerations(1);
    await client.delete(`/v1/instances/${id}`);
    assertError(await client.post(path(id, 'fork'), { name: newName() }), 'CONFLICT');
  });
});

describe('POST …/fork 429', () => {
  test('beyond the quota of instances or of disk, also concurrently', async () => {
    const someone = await api.person();
    const parent = await api.instance(someone, { disk_gib: 2 });
    await makeGenerations(db, parent.id, 1);
    const fork = () => api.as(someone).post(path(parent.id, 'fork'), { name: newName() });
    await setQuota(db, someone.org_id, { disk_gib: 3 });
    assertError(await fork(), 'QUOTA_EXCEEDED');
    await setQuota(db, someone.org_id, { disk_gib: null, instances: 4 });
    const answers = await Promise.all(Array.from({ length: 8 }, fork));
    assert.equal(answers.filter(({ status }) => status === 201).length, 3);
    assert.equal(answers.filter(({ status }) => status === 429).length, 5);
  });
});
