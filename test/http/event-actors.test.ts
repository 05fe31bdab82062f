/** Who is named by the events that complete what somebody asked for, or what happened by itself. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { wakeVm } from '../../src/control-plane/vms/start-vm.ts';
import { stopIdleVm } from '../../src/control-plane/vms/stop-vm.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { makeServiceKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const { db, agent } = api;
const owner = await api.person();

/** Type, actor, and what the event says of its cause; the newest last. */
async function eventsOf(instance_id: InstanceId) {
  const rows = await db
    .selectFrom('events')
    .select(['type', 'actor', 'data'])
    .where('instance_id', '=', instance_id)
    .orderBy('sequence')
    .execute();
  return rows.map(({ type, actor, data }) => {
    const { cause, flush } = data as { cause?: string; flush?: { generation: number; trigger: string } };
    return [type, actor, flush === undefined ? cause : `${flush.trigger} ${flush.generation}`] as const;
  });
}
const last = async (id: InstanceId) => (await eventsOf(id)).at(-1);
const vm = (id: string, rest = '') => `/v1/instances/${id}/vm${rest}`;

describe('a person who asks is named when it is done:', () => {
  test('a start, a restart', async () => {
    const { id } = await instanceIn(api, owner, 'restarting');
    await agent.known(id);
    await agent.ready(id);
    assert.deepEqual((await eventsOf(id)).slice(1), [
      ['vm.started', owner.user_id, 'start_requested'],
      ['vm.restarted', owner.user_id, 'restart_requested'],
    ]);
  });

  test('a flush, with its trigger and generation', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const colleague = await api.person({ org_id: owner.org_id, role: 'member' });
    const answering = api.as(colleague).post(vm(id, '/flush'));
    const flush_id = await agent.askedToFlush(id);
    await agent.beginFlush(flush_id);
    await agent.commit(id, 1);
    await agent.endFlush(flush_id);
    assert.equal((await answering).status, 200);
    assert.deepEqual(await last(id), ['disk.flushed', colleague.user_id, 'request 1']);
    await agent.commit(id, 2);
    assert.deepEqual(await last(id), ['disk.flushed', api.host_id, 'auto 2']);
  });

  test('a stop and its flush, also of a service account, and after the flush had to wait', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const robot = await makeServiceKey(db, owner.org_id, '*');
    assert.equal((await api.as(robot.key).delete(vm(id))).status, 202);
    const reason = { code: 'flush_pending', message: 'It waits.' } as const;
    await agent.observe(id, { kind: 'flush_pending', reason });
    await agent.commit(id, 1);
    await agent.stopped(id);
    const events = await eventsOf(id);
    const actor = events.at(-1)?.[1];
    assert.match(actor ?? '', /^sa_/);
    assert.deepEqual(events.slice(2), [
      ['disk.flush_failed', actor, 'final'],
      ['disk.flushed', actor, 'stop 1'],
      ['vm.stopped', actor, 'stop_requested'],
    ]);
  });

  test('a suspend and its flush', async () => {
    const { id } = await instanceIn(api, owner, 'suspending');
    await agent.commit(id, 1);
    await agent.suspended(id);
    assert.deepEqual((await eventsOf(id)).slice(2), [
      ['disk.flushed', owner.user_id, 'suspend 1'],
      ['vm.suspended', owner.user_id, 'suspend_requested'],
    ]);
  });

  test('a flush that failed', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answering = api.as(owner).post(vm(id, '/flush'));
    const flush_id = await agent.askedToFlush(id);
    await agent.beginFlush(flush_id);
    await agent.failFlush(flush_id);
    assert.equal((await answering).status, 503);
    assert.deepEqual(await last(id), ['disk.flush_failed', owner.user_id, 'asked']);
  });
});

describe('what happens by itself is of the host or of system:', () => {
  test('an automatic flush, a failure, a power-off in the guest', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.commit(id, 1);
    await agent.observe(id, { kind: 'powered_off' });
    await agent.commit(id, 2);
    await agent.stopped(id);
    const other = await instanceIn(api, owner, 'running');
    await agent.failed(other.id);
    assert.deepEqual((await eventsOf(id)).slice(2), [
      ['disk.flushed', api.host_id, 'auto 1'],
      ['disk.flushed', api.host_id, 'stop 2'],
      ['vm.stopped', api.host_id, 'guest_poweroff'],
    ]);
    assert.deepEqual(await last(other.id), ['vm.failed', api.host_id, undefined]);
  });

  test('a wake, an idle stop', async () => {
    const change = { wake_on_connect: true, idle_timeout_seconds: 60 };
    const { id } = await api.instance(owner, change);
    await transaction(db, (tx) => wakeVm(tx, api.context.quotas, id));
    await agent.assigned(id);
    await agent.ready(id);
    assert.deepEqual(await last(id), ['vm.started', 'system', 'woken']);
    const long_ago = new Date(Date.now() - 3_600_000);
    await db
      .updateTable('vms')
      .set({ active_at: long_ago, started_at: long_ago })
      .where('instance_id', '=', id)
      .execute();
    await api.ingress.reportActivity({ watched_ms: 3_600_000, active: [] }, AbortSignal.timeout(5_000));
    assert.ok(await transaction(db, (tx) => stopIdleVm(tx, id)));
    await agent.stopped(id);
    assert.deepEqual(await last(id), ['vm.stopped', 'system', 'idle']);
  });
});
