/** Generations: the list, names and pins, retention, restore. Forks have a file of their own; what they hold is in test/host/generations-model.test.ts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { dropOldGenerations } from '../../src/control-plane/disks/generation-store.ts';
import { VM_STATES } from '../../src/control-plane/vms/model.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut, newName } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { generationScene, makeGenerations } from '../support/generations.ts';
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';
import { segmentOf } from '../support/scripted-agent.ts';
import { instanceIn } from '../support/states.ts';

type Forked = { readonly forked_from?: unknown; readonly restored_from?: unknown } | undefined;

interface GenerationOut {
  readonly generation: number;
  readonly created_at: string;
  readonly bytes: number;
  readonly consistency: string;
  readonly name: string | null;
  readonly pinned: boolean;
  readonly trigger: string;
  readonly origin: { readonly instance_id: string; readonly generation: number } | null;
  readonly dirty_bytes: number | null;
  readonly segments: number | null;
  readonly duration_ms: number | null;
}

const api = await apiForFile();
const { db, agent } = api;
const owner = await api.person();
const client = api.as(owner);
const { path, withGenerations, read, layers, events, audited } = generationScene(api, owner);

async function list(id: string, query = ''): Promise<Page<GenerationOut>> {
  const answer = await client.get<Page<GenerationOut>>(path(id, `generations${query}`));
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}
const numbers = async (id: string) => (await list(id)).data.map(({ generation }) => generation);

describe('GET …/generations 200', () => {
  test('newest first, page by page, each generation once', async () => {
    const { id } = await withGenerations(5);
    const first = await list(id, '?limit=2');
    assert.deepEqual(
      first.data.map(({ generation, bytes, consistency, name, pinned }) => ({
        ...{ generation, bytes, consistency, name, pinned },
      })),
      [5, 4].map((generation) => ({
        ...{ generation, bytes: 1000 * generation, consistency: 'filesystem', name: null, pinned: false },
      })),
    );
    assert.match(first.data[0]?.created_at ?? '', /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    // What is inserted meanwhile does not shift the pages.
    await makeGenerations(db, id, 1);
    const second = await list(id, `?limit=2&cursor=${first.next_cursor}`);
    const third = await list(id, `?limit=2&cursor=${second.next_cursor}`);
    const rest = [...second.data, ...third.data].map(({ generation }) => generation);
    assert.deepEqual([rest, third.next_cursor], [[3, 2, 1], null]);
  });
  test('each tells what made it, and what its receipt said', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.commit(id, 1);
    const flushing = client.post(path(id, 'vm/flush'));
    const flush_id = await agent.askedToFlush(id);
    await agent.beginFlush(flush_id);
    await agent.commit(id, 2);
    await agent.endFlush(flush_id, { duration_ms: 180 });
    await flushing;
    await client.post(path(id, 'vm/suspend'));
    await agent.commit(id, 3);
    await agent.suspended(id);
    await client.post(path(id, 'vm'));
    await agent.assigned(id, 'it resumes', ({ resume }) => resume !== null);
    await agent.ready(id);
    await client.delete(path(id, 'vm'));
    await agent.commit(id, 4);
    await agent.stopped(id);
    await client.post(path(id, 'restore'), { generation: 2 });
    const { data } = await list(id);
    assert.deepEqual(
      data.map(({ generation, trigger, origin }) => ({ generation, trigger, origin })),
      [
        { generation: 5, trigger: 'restore', origin: { instance_id: id, generation: 2 } },
        { generation: 4, trigger: 'stop', origin: null },
        { generation: 3, trigger: 'suspend', origin: null },
        { generation: 2, trigger: 'request', origin: null },
        { generation: 1, trigger: 'auto', origin: null },
      ],
    );
    const receipts = data.map(({ dirty_bytes, segments, duration_ms }) => [
      dirty_bytes,
      segments,
      duration_ms,
    ]);
    assert.deepEqual(
      [receipts[0], receipts[3]?.slice(1), receipts[4]?.slice(1)],
      [
        [null, null, null],
        [1, 180],
        [1, null],
      ],
    );
    const fork = (await client.post<InstanceOut>(path(id, 'fork'), { name: newName(), generation: 4 })).body;
    assert.partialDeepStrictEqual((await list(fork.id)).data, [
      { generation: 4, trigger: 'fork', origin: { instance_id: id, generation: 4 } },
    ]);
  });
  test('none before the first flush', async () => {
    const { id } = await api.instance(owner);
    assert.deepEqual(await list(id), { data: [], next_cursor: null });
  });
});

describe('GET …/generations 400', () => {
  test("another instance's cursor, a limit out of range, an unknown parameter", async () => {
    const [a, b] = [await withGenerations(3), await withGenerations(3)];
    const { next_cursor } = await list(a.id, '?limit=1');
    for (const query of [`?cursor=${next_cursor}`, '?limit=0', '?limit=201', '?name=x']) {
      assertError(await client.get(path(b.id, `generations${query}`)), 'INVALID_REQUEST');
    }
  });
});

describe('PATCH …/generations/:n 200', () => {
  test('sets and removes name and pin; omitted fields stay', async () => {
    const { id } = await withGenerations(2);
    const patch = async (body: object) =>
      (await client.patch<GenerationOut>(path(id, 'generations/1'), body)).body;
    const named = await patch({ name: 'before the upgrade' });
    assert.deepEqual([named.name, named.pinned], ['before the upgrade', false]);
    const pinned = await patch({ pinned: true });
    assert.deepEqual([pinned.name, pinned.pinned], ['before the upgrade', true]);
    assert.deepEqual(await patch({}), pinned);
    assert.deepEqual((await list(id)).data[1], pinned);
    const bare = await patch({ name: null, pinned: false });
    assert.deepEqual([bare.name, bare.pinned], [null, false]);
    assert.deepEqual((await audited(id)).filter((action) => action === 'generation.change').length, 4);
  });
});

describe('PATCH …/generations/:n 400, 404, 409, 429', () => {
  test('a body that is malformed', async () => {
    const { id } = await withGenerations(1);
    for (const body of [
      { name: '' },
      { name: 'a\nb' },
      { pinned: 1 },
      { bytes: 1 },
      { name: 'x'.repeat(101) },
    ])
      assertError(await client.patch(path(id, 'generations/1'), body), 'INVALID_REQUEST');
  });
  test('a generation that is unknown, expired, or not a number', async () => {
    const { id } = await withGenerations(3, { generations_keep: { last: 1, daily_days: 0 } });
    await dropOldGenerations(db);
    for (const n of ['0', '1', '4', '-1', '1.5', 'x', '9'.repeat(30)])
      assertError(await client.patch(path(id, `generations/${n}`), { pinned: true }), 'NOT_FOUND');
  });
  test('a generation that expires meanwhile', async () => {
    const { id } = await withGenerations(2);
    const change = await db.transaction().execute(async (tx) => {
      const of_first = tx.updateTable('generations').set({ retained: false });
      await of_first.where('instance_id', '=', id).where('generation', '=', 1).execute();
      const patched = client.patch(path(id, 'generations/1'), { pinned: true });
      await untilLocksAreWaitedFor(db, 1);
      return { patched };
    });
    assertError(await change.patched, 'NOT_FOUND', /was dropped/);
  });
  test('an instance that is being deleted', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.commit(id, 1);
    await client.delete(`/v1/instances/${id}`);
    assertError(await client.patch(path(id, 'generations/1'), { pinned: true }), 'CONFLICT');
  });
  test('more than 100 pins', async () => {
    const { id } = await withGenerations(101);
    await db
      .updateTable('generations')
      .set({ pinned: true })
      .where('instance_id', '=', id)
      .where('generation', '<=', 100)
      .execute();
    assertError(await client.patch(path(id, 'generations/101'), { pinned: true }), 'QUOTA_EXCEEDED');
    assert.equal((await client.patch(path(id, 'generations/1'), { pinned: true })).status, 200);
  });
});

const diskOf = (id: InstanceId) =>
  db
    .selectFrom('disks')
    .select(['epoch', 'commit_id'])
    .where('instance_id', '=', id)
    .executeTakeFirstOrThrow();

describe('POST …/restore 200', () => {
  test('creates a new generation of the same objects, with new epoch and commit id, and keeps those between', async () => {
    const { id } = await withGenerations(3);
    const before = await diskOf(id);
    const answer = await client.post<InstanceOut>(path(id, 'restore'), { generation: 1 });
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(answer.body, await read(id));
    assert.equal(answer.body.disk.generation, 4);
    assert.deepEqual(await layers(id, 4), await layers(id, 1));
    assert.deepEqual(await numbers(id), [4, 3, 2, 1]);
    const { epoch, commit_id } = await diskOf(id);
    assert.equal(epoch, before.epoch + 1);
    assert.notEqual(commit_id, before.commit_id);
    const last = (await events(id)).at(-1);
    assert.deepEqual([last?.type, last?.actor], ['instance.restored', owner.user_id]);
    assert.deepEqual((last?.data as Forked)?.restored_from, { generation: 1 });
    assert((await audited(id)).includes('instance.restore'));
  });
  test('a commit of an earlier VM is refused, and the next boot continues from the restore', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.commit(id, 1);
    await agent.commit(id, 2);
    await client.delete(path(id, 'vm'));
    await agent.stopped(id);
    assert.equal((await client.post(path(id, 'restore'), { generation: 1 })).status, 200);
    assert.equal((await agent.commit(id, 4)).outcome, 'fenced');
    await client.post(path(id, 'vm'));
    const { epoch, host_key_new } = await agent.assigned(id);
    // The guest says anew which host key the disk of then has.
    assert.equal(host_key_new, true);
    const head = await agent.client.head(id);
    assert.deepEqual([head?.generation, head?.epoch], [3, 3]);
    assert.equal(epoch, 3);
    await agent.ready(id);
    assert.equal((await agent.known(id)).host_key_new, false);
    assert.equal((await agent.commit(id, 4)).outcome, 'committed');
    const keys = [segmentOf(id, 1, 1), segmentOf(id, 3, 4)].map(({ key }) => key);
    assert.deepEqual(await layers(id, 4), keys);
  });
  test('repeated with one Idempotency-Key restores once', async () => {
    const { id } = await withGenerations(2);
    const options = { headers: { 'idempotency-key': newId('evt') } };
    const first = await client.post<InstanceOut>(path(id, 'restore'), { generation: 1 }, options);
    const again = await client.post<InstanceOut>(path(id, 'restore'), { generation: 1 }, options);
    assert.deepEqual([again.body, (await read(id)).disk.generation], [first.body, 3]);
  });
});

describe('POST …/restore 400, 404', () => {
  test('a body that is malformed', async () => {
    const { id } = await withGenerations(1);
    for (const body of [
      {},
      { generation: 0 },
      { generation: '1' },
      { generation: 1.5 },
      { generation: 1, x: 1 },
    ])
      assertError(await client.post(path(id, 'restore'), body), 'INVALID_REQUEST');
  });
  test('an unknown or expired generation', async () => {
    const { id } = await withGenerations(3, { generations_keep: { last: 1, daily_days: 0 } });
    await dropOldGenerations(db);
    for (const generation of [1, 4, 2 ** 53 - 1])
      assertError(await client.post(path(id, 'restore'), { generation }), 'NOT_FOUND');
    assert.equal((await read(id)).disk.generation, 3);
  });
});

describe('POST …/restore 409', () => {
  for (const state of VM_STATES.filter((each) => each !== 'stopped')) {
    test(`while the VM is ${state}, which the message names`, async () => {
      const { id } = await instanceIn(api, owner, state);
      await makeGenerations(db, id, 1);
      const answer = await client.post(path(id, 'restore'), { generation: 1 });
      assertError(answer, 'CONFLICT');
      assert.match(answer.text, new RegExp(`is ${state}[.]`));
    });
  }
  test('while it is being deleted', async () => {
    const { id } = await withGenerations(1);
    await client.delete(`/v1/instances/${id}`);
    assertError(await client.post(path(id, 'restore'), { generation: 1 }), 'CONFLICT');
  });
});

describe('retention', () => {
  /** Says that a generation was made so many days ago, by days of UTC. */
  async function age(id: InstanceId, days: readonly number[]): Promise<void> {
    for (const [i, back] of days.entries()) {
      const at = new Date(Date.now() - back * 86_400_000);
      at.setUTCHours(0, i, 0, 0);
      await db
        .updateTable('generations')
        .set({ created_at: at })
        .where('instance_id', '=', id)
        .where('generation', '=', i + 1)
        .execute();
    }
  }

  test('keeps the newest, the last of each day, and pinned generations', async () => {
    const { id } = await withGenerations(9, { generations_keep: { last: 2, daily_days: 4 } });
    await age(id, [20, 10, 4, 4, 3, 2, 2, 1, 1]);
    await client.patch(path(id, 'generations/2'), { pinned: true });
    await dropOldGenerations(db);
    assert.deepEqual(await numbers(id), [9, 8, 7, 5, 4, 2]);
    // The same again changes nothing; a pin that is taken off and another rule do.
    await dropOldGenerations(db);
    assert.deepEqual(await numbers(id), [9, 8, 7, 5, 4, 2]);
    await client.patch(path(id, 'generations/2'), { pinned: false });
    await client.patch(`/v1/instances/${id}`, { generations_keep: { last: 1, daily_days: 0 } });
    await dropOldGenerations(db);
    assert.deepEqual(await numbers(id), [9]);
    assert.equal((await layers(id, 9)).length, 9, 'the links are there');
  });

  test("keeps the last of each day also when the database's clock has jumped ahead by weeks", async () => {
    const { id } = await withGenerations(5, { generations_keep: { last: 1, daily_days: 4 } });
    // As the clock then says: all but the newest seem weeks old.
    await age(id, [23, 22, 22, 21, 0]);
    await dropOldGenerations(db);
    assert.deepEqual(await numbers(id), [5, 4, 3, 1]);
  });
});
