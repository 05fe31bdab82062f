/** Requested flushes: which flush a caller joins, what a receipt covers, and the errors. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, type TestContext, test } from 'node:test';
import type { Topic } from '../../src/control-plane/db/notify.ts';
import type { FlushReceipt } from '../../src/control-plane/vms/flush-vm.ts';
import type { FlushId, InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, startApi } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { FLUSH_WORK } from '../support/scripted-agent.ts';
import { instanceIn, stateOf } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const owner = await api.person();
const { agent } = api;

function flush(id: string) {
  return api.as(owner).post<FlushReceipt>(`/v1/instances/${id}/vm/flush`);
}

function rows(instance_id: InstanceId) {
  return api.db
    .selectFrom('flushes')
    .select(['id', 'state'])
    .where('instance_id', '=', instance_id)
    .orderBy('id')
    .execute();
}

describe('200', () => {
  test("the receipt has the commit's generation and time, and the host's report of the work", async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answering = flush(id);
    const flush_id = await agent.askedToFlush(id);
    await agent.beginFlush(flush_id);
    const committed = await agent.commit(id, 1);
    assert(committed.outcome === 'committed');
    await agent.endFlush(flush_id);
    const { status, body } = await answering;
    assert.equal(status, 200);
    assert.deepEqual(body, { generation: 1, durable_at: committed.durable_at, ...FLUSH_WORK });
  });

  test('the audit log tells after which generation it was asked for', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    await flush(id);
    await api.db.updateTable('disks').set({ generation: 6 }).where('instance_id', '=', id).execute();
    await flush(id);
    const { body } = await api
      .as(owner)
      .get<{ data: { target: string; data: { after_generation?: number } }[] }>('/v1/audit?action=vm.flush');
    const told = body.data.filter(({ target }) => target === id).map(({ data }) => data.after_generation);
    assert.deepEqual(told, [6, 0]);
  });

  test('a caller never joins a running flush, which may miss writes before the call', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const first = flush(id);
    const first_id = await agent.askedToFlush(id);
    await agent.beginFlush(first_id);
    const second = flush(id);
    const second_id = await agent.askedToFlush(id, first_id);
    await agent.commit(id, 1);
    await agent.endFlush(first_id);
    assert.equal((await first).body.generation, 1);
    assert.deepEqual(await rows(id), [
      { id: first_id, state: 'done' },
      { id: second_id, state: 'queued' },
    ]);
    await agent.beginFlush(second_id);
    await agent.commit(id, 2);
    await agent.endFlush(second_id);
    assert.equal((await second).body.generation, 2);
  });

  test('callers share the queued flush', async (t) => {
    const waiting = waitersOf(t, 'flush');
    const { id } = await instanceIn(api, owner, 'running');
    const running = flush(id);
    const running_id = await agent.askedToFlush(id);
    await agent.beginFlush(running_id);
    const callers = Array.from({ length: 20 }, () => flush(id));
    const queued_id = await agent.askedToFlush(id, running_id);
    await agent.endFlush(running_id);
    await running;
    // A caller that came later would make a third one.
    await until('all twenty wait', () => waiting(queued_id) === 20);
    await agent.beginFlush(queued_id);
    await agent.commit(id, 1);
    await agent.endFlush(queued_id);
    for (const answer of await Promise.all(callers)) assert.equal(answer.body.generation, 1);
    assert.equal((await rows(id)).length, 2);
  });

  test('a flush that its host interrupted is repeated after the restart', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answering = flush(id);
    const flush_id = await agent.askedToFlush(id);
    await agent.beginFlush(flush_id);
    // The agent restarts: all it knows is what it is told now.
    assert.equal(await agent.askedToFlush(id), flush_id);
    await agent.beginFlush(flush_id);
    await agent.endFlush(flush_id);
    assert.equal((await answering).status, 200);
  });

  test('callers of a flush during a stop get the final generation', async () => {
    const { id } = await instanceIn(api, owner, 'stopping');
    await agent.commit(id, 1);
    const answering = [flush(id), flush(id)];
    await agent.stopped(id);
    for (const { status, body } of await Promise.all(answering)) {
      assert.deepEqual([status, body.generation, body.uploaded_bytes], [200, 1, 0]);
      assert.equal(body.durable_at, (await stateOf(api, owner, id)).disk.durable_at);
    }
  });

  for (const end of ['stop', 'suspend'] as const) {
    test(`callers of a flush before a ${end} get its result`, async () => {
      const { id } = await instanceIn(api, owner, 'running');
      const answering = flush(id);
      await agent.askedToFlush(id);
      const vm = `/v1/instances/${id}/vm`;
      const asked = end === 'stop' ? api.as(owner).delete(vm) : api.as(owner).post(`${vm}/suspend`);
      assert.equal((await asked).status, 202);
      await agent.commit(id, 1);
      await (end === 'stop' ? agent.stopped(id) : agent.suspended(id));
      const { status, body } = await answering;
      assert.deepEqual([status, body.generation, body.uploaded_bytes], [200, 1, 0]);
      assert.equal(body.durable_at, (await stateOf(api, owner, id)).disk.durable_at);
    });
  }

  test('a stopped VM returns its current generation and no bytes', async () => {
    const { id } = await instanceIn(api, owner, 'stopping');
    await agent.commit(id, 1);
    await agent.stopped(id);
    const { body } = await flush(id);
    const { disk } = await stateOf(api, owner, id);
    assert.deepEqual(body, {
      generation: 1,
      durable_at: disk.durable_at,
      dirty_bytes: 0,
      uploaded_bytes: 0,
      segments: 0,
      duration_ms: 0,
      consistency: 'offline',
    });
  });
});

describe('409', () => {
  test('a VM that dies during a flush ends it for its callers', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answering = flush(id);
    await agent.beginFlush(await agent.askedToFlush(id));
    await agent.failed(id);
    assertError(await answering, 'CONFLICT', /The VM has failed/);
  });
  test('a VM that fails while it stops has no final flush to join', async (t) => {
    const waiting = waitersOf(t, 'instance');
    const { id } = await instanceIn(api, owner, 'stopping');
    const answering = flush(id);
    await until('the caller waits', () => waiting(id) === 1);
    await agent.failed(id);
    assertError(await answering, 'CONFLICT', /failed/);
  });
  test('a stop of a failed VM whose writes are lost returns no receipt', async (t) => {
    const waiting = waitersOf(t, 'instance');
    const { id } = await instanceIn(api, owner, 'failed');
    const before = flush(id);
    await agent.askedToFlush(id);
    await api.as(owner).delete(`/v1/instances/${id}/vm`);
    const during = flush(id);
    await until('the caller waits', () => waiting(id) === 1);
    const recovered = { code: 'recovered', message: 'It continues from generation 3.' } as const;
    await agent.stoppedWithLoss(id, recovered);
    for (const answer of [await before, await during])
      assertError(answer, 'CONFLICT', /It continues from generation 3/);
  });
  test('a start ends an orphaned flush of the earlier boot; the new boot has its own', async () => {
    const { id } = await instanceIn(api, owner, 'failed');
    const of_before = flush(id);
    const before_id = await agent.askedToFlush(id);
    assert.equal((await api.as(owner).post(`/v1/instances/${id}/vm`)).status, 202);
    await agent.assigned(id, 'the new boot is assigned', (each) => each.desired === 'running');
    await agent.ready(id);
    const answering = flush(id);
    const flush_id = await agent.askedToFlush(id);
    assert.notEqual(flush_id, before_id);
    await agent.beginFlush(flush_id);
    await agent.endFlush(flush_id);
    assert.equal((await answering).status, 200);
    assertError(await of_before, 'CONFLICT', /started/);
  });
  test('deletion ends a flush for its callers', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answering = flush(id);
    await agent.askedToFlush(id);
    await api.as(owner).delete(`/v1/instances/${id}`);
    await agent.deleted(id);
    assertError(await answering, 'CONFLICT', /deleted/);
  });
});

describe('503', () => {
  test('the object store is unavailable: nothing is lost, and the message says so', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answering = flush(id);
    const flush_id = await agent.askedToFlush(id);
    await agent.beginFlush(flush_id);
    await agent.failFlush(flush_id);
    const answer = await answering;
    assertError(answer, 'UNAVAILABLE', /The object store is away\..*Nothing is lost/);
    assert.equal(answer.headers['retry-after'], '5');
    assert.equal((await stateOf(api, owner, id)).state, 'running');
  });

  test('a flush whose host names no commit, or another than the head, has no receipt', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.commit(id, 1);
    const earlier = (await agent.client.head(id))?.commit_id ?? '';
    await agent.commit(id, 2);
    for (const commit_id of [randomUUID(), earlier]) {
      const answering = flush(id);
      const flush_id = await agent.askedToFlush(id);
      await agent.beginFlush(flush_id);
      await agent.endFlush(flush_id, { commit_id });
      assertError(await answering, 'UNAVAILABLE', /not the disk's present generation 2/);
    }
  });

  test('the same Idempotency-Key retries a failed flush, and replays a successful one', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const headers = { 'idempotency-key': 'once' };
    const ask = () =>
      api.as(owner).call<FlushReceipt>('POST', `/v1/instances/${id}/vm/flush`, { json: {}, headers });
    const first = ask();
    const first_id = await agent.askedToFlush(id);
    await agent.beginFlush(first_id);
    await agent.failFlush(first_id);
    assertError(await first, 'UNAVAILABLE');
    const second = ask();
    const second_id = await agent.askedToFlush(id, first_id);
    await agent.beginFlush(second_id);
    await agent.endFlush(second_id);
    const made = await second;
    assert.deepEqual([made.status, made.headers['idempotency-replayed']], [200, undefined], made.text);
    const again = await ask();
    assert.deepEqual([again.status, again.headers['idempotency-replayed']], [200, 'true']);
    assert.equal(again.text, made.text);
    assert.equal((await rows(id)).length, 2);
  });

  test('a flush that another one of the same disk overtook is reported as interrupted', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const first = flush(id);
    const first_id = await agent.askedToFlush(id);
    await agent.beginFlush(first_id);
    const second = flush(id);
    const second_id = await agent.askedToFlush(id, first_id);
    assert.deepEqual(await agent.beginFlush(second_id), { outcome: 'accepted' });
    assertError(await first, 'UNAVAILABLE', /interrupted/);
    assert.deepEqual(await agent.endFlush(first_id), { outcome: 'fenced' });
    await agent.endFlush(second_id);
    assert.equal((await second).status, 200);
  });

  test('a control plane that ends while a caller waits says that the flush continues', async (t) => {
    const ending = await startApi();
    t.after(() => ending.close());
    const person = await ending.person();
    const { id } = await instanceIn(ending, person, 'running');
    const answering = ending.as(person).post(`/v1/instances/${id}/vm/flush`);
    await ending.agent.askedToFlush(id);
    await ending.hub.stop();
    assertError(await answering, 'UNAVAILABLE', /still running/);
  });
});

test('a report of an ended flush, or of another host, is fenced', async () => {
  const { id } = await instanceIn(api, owner, 'running');
  const answering = flush(id);
  const flush_id = await agent.askedToFlush(id);
  await agent.endFlush(flush_id);
  await answering;
  assert.deepEqual(await agent.failFlush(flush_id), { outcome: 'fenced' });
  assert.deepEqual(await agent.beginFlush('flush_00000000000000000000000000' as FlushId), {
    outcome: 'fenced',
  });
});

/** How many have begun to wait for a notification of `topic` and an id, from now on. */
function waitersOf(t: TestContext, topic: Topic): (id: string) => number {
  const subscribe = t.mock.method(api.hub, 'subscribe');
  return (id) =>
    subscribe.mock.calls.filter((call) => call.arguments[0] === topic && call.arguments[1] === id).length;
}
