/** Instances with `restart: on_failure`: which failed VMs are started again, when, and what the owner reads about it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { restartFailed } from '../../src/control-plane/vms/start-vm.ts';
import { listFailed } from '../../src/control-plane/vms/store.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { apiForFile, type InstanceOut, type VmOut } from '../support/api.ts';
import { instanceIn, stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const { agent, db } = api;
const log = createLog('test', 'silent');

/** One run of the task, as if `after_ms` had passed. */
const run = (after_ms: number, quotas = api.context.quotas) =>
  restartFailed(db, quotas, log, new Date(Date.now() + after_ms));

async function failing(who = owner): Promise<InstanceId> {
  const { id } = await instanceIn(api, who, 'running');
  const { status, body } = await api
    .as(who)
    .patch<InstanceOut>(`/v1/instances/${id}`, { restart: 'on_failure' });
  assert.deepEqual([status, body.restart], [200, 'on_failure']);
  await agent.failed(id);
  return id;
}

const vmOf = (id: string): Promise<VmOut> => stateOf(api, owner, id);

async function eventsOf(id: InstanceId) {
  const rows = await db
    .selectFrom('events')
    .select(['type', 'actor', 'data'])
    .where('instance_id', '=', id)
    .orderBy('sequence')
    .execute();
  return rows.map(({ type, actor, data }) => [type, actor, (data as { cause?: string }).cause ?? null]);
}

test('a failed VM is started again after its delay, and then says what was lost', async () => {
  const id = await failing();
  await run(0);
  assert.equal((await vmOf(id)).state, 'failed');
  await run(1_001);
  const starting = await vmOf(id);
  assert.deepEqual(
    [starting.state, starting.boot, starting.reason?.code],
    ['starting', 2, 'restart_on_failure'],
  );
  assert.match(starting.reason?.message ?? '', /had failed \(vm_died\)\. This is start 1 of at most 5/);
  await agent.assigned(id);
  await agent.ready(id);
  const { state, reason } = await vmOf(id);
  assert.deepEqual([state, reason?.code], ['running', 'recovered']);
  assert.match(reason?.message ?? '', /what the guest held in memory is lost/);
  const events = await eventsOf(id);
  assert.deepEqual(events.slice(-2), [
    ['vm.started', 'system', 'restart_on_failure'],
    ['vm.recovered', events.at(-1)?.[1], null],
  ]);
});

test('after five starts within ten minutes it stays failed, until somebody starts it', async () => {
  const id = await failing();
  for (const delay_s of [1, 2, 4, 8, 16]) {
    await run(delay_s * 1_000 - 500);
    assert.equal((await vmOf(id)).state, 'failed', `before ${delay_s} s`);
    await run(delay_s * 1_000 + 1);
    assert.equal((await vmOf(id)).state, 'starting', `after ${delay_s} s`);
    await agent.assigned(id);
    await agent.failed(id);
  }
  await run(24 * 3_600_000);
  assert.deepEqual([(await vmOf(id)).state, (await vmOf(id)).boot], ['failed', 6]);
  const listed = await listFailed(db, new Date(Date.now() + 48 * 3_600_000));
  assert(!listed.some(({ instance_id }) => instance_id === id), 'it is not looked at again');
  assert.equal((await client.post(`/v1/instances/${id}/vm`)).status, 202);
});

describe('a failed VM stays failed', () => {
  test('without the setting, which is the default', async () => {
    const { id, restart } = await instanceIn(api, owner, 'failed');
    assert.equal(restart, 'never');
    await run(60_000);
    assert.equal((await vmOf(id)).state, 'failed');
  });
  test('once the setting is taken back', async () => {
    const id = await failing();
    await client.patch(`/v1/instances/${id}`, { restart: 'never' });
    await run(60_000);
    assert.equal((await vmOf(id)).state, 'failed');
  });
  test('when it failed during a stop or a suspend that somebody asked for', async () => {
    for (const state of ['stopping', 'suspending'] as const) {
      const { id } = await instanceIn(api, owner, state);
      await client.patch(`/v1/instances/${id}`, { restart: 'on_failure' });
      await agent.failed(id);
      await run(60_000);
      assert.equal((await vmOf(id)).state, 'failed', state);
    }
  });
});

test('a VM that cannot start yet is tried again after ten seconds', async () => {
  const id = await failing();
  const without_memory = { ...api.context.quotas, memory_mib: 1 };
  await run(2_000, without_memory);
  await run(11_000);
  assert.equal((await vmOf(id)).state, 'failed');
  await run(12_001);
  assert.equal((await vmOf(id)).state, 'starting');
});

test('VMs that cannot start hold up nobody else’s', async () => {
  const other = await api.person();
  const theirs = await failing(other);
  for (let n = 0; n < 4; n++) {
    const id = await failing();
    await db.updateTable('instances').set({ memory_mib: 4096 }).where('id', '=', id).execute();
  }
  await run(2_000, { ...api.context.quotas, memory_mib: 2048 });
  assert.equal((await stateOf(api, other, theirs)).state, 'starting');
});

test('a VM whose delay is not over is not looked at before that', async () => {
  const waiting = await failing();
  const [soon, later] = [new Date(), new Date(Date.now() + 2_000)];
  const listed = async (now: Date) => (await listFailed(db, now)).map(({ instance_id }) => instance_id);
  assert((await listed(soon)).includes(waiting));
  await run(0);
  assert(!(await listed(soon)).includes(waiting));
  assert((await listed(later)).includes(waiting));
});
