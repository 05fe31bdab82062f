/** The calls on a VM beyond the table of states: waiting, concurrency, recovery, hosts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import {
  applyDeadlines,
  DeadlineMonitor,
  enforceDeadlines,
  GRACE_MS,
} from '../../src/control-plane/vms/deadline-monitor.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile, type VmOut } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { instanceIn, stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const { agent } = api;

/** Shorter than a second: the state that is there is what a caller gets. */
async function eventTypes(instance_id: InstanceId): Promise<string[]> {
  const rows = await api.db
    .selectFrom('events')
    .select(['type', 'sequence'])
    .where('instance_id', '=', instance_id)
    .orderBy('sequence')
    .execute();
  assert.deepEqual(
    rows.map((row) => row.sequence),
    rows.map((_, index) => index + 1),
    'events of an instance are numbered without gaps',
  );
  return rows.map((row) => row.type);
}

describe('200', () => {
  test('an instance that never started shows a stopped VM without id', async () => {
    const { id } = await api.instance(owner);
    const { body, status } = await client.get<VmOut>(`/v1/instances/${id}/vm`);
    assert.equal(status, 200);
    assert.deepEqual(
      { id: body.id, state: body.state, boot: body.boot, host_id: body.host_id, reason: body.reason },
      { id: null, state: 'stopped', boot: 0, host_id: null, reason: null },
    );
  });

  test('20 concurrent starts cause one boot: one 202, nineteen 200, all of the same VM', async () => {
    const { id } = await api.instance(owner);
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => client.post<VmOut>(`/v1/instances/${id}/vm`)),
    );
    assert.deepEqual(answers.map((each) => each.status).sort(), [...Array(19).fill(200), 202]);
    assert.equal(new Set(answers.map((each) => each.body.id)).size, 1);
    const boots = await api.db.selectFrom('vms').selectAll().where('instance_id', '=', id).execute();
    assert.equal(boots.length, 1);
  });

  test('concurrent starts, stops and restarts leave one consistent VM and no error but 409', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const calls = [
      () => client.post<VmOut>(`/v1/instances/${id}/vm`),
      () => client.delete<VmOut>(`/v1/instances/${id}/vm`),
      () => client.post<VmOut>(`/v1/instances/${id}/vm/restart`),
    ];
    const answers = await Promise.all(Array.from({ length: 18 }, (_, i) => calls[i % 3]?.()));
    for (const answer of answers) assert.ok([200, 202, 409].includes(answer?.status ?? 0), answer?.text);
    assert.equal((await stateOf(api, owner, id)).state, 'stopping');
  });

  test("a VM's life has its states, times and numbered events", async () => {
    const { id } = await api.instance(owner);
    const vm = `/v1/instances/${id}/vm`;
    const started = (await client.post<VmOut>(vm)).body;
    assert.equal(started.started_at, null);
    await agent.ready(id);
    const running = await stateOf(api, owner, id);
    assert.match(running.started_at ?? '', /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    assert.equal(running.reason?.code, 'ready');
    assert.equal(running.reason?.actor, api.host_id);
    await client.post(`${vm}/restart`);
    await agent.ready(id);
    const again = await stateOf(api, owner, id);
    assert.deepEqual([again.id, again.boot, again.started_at], [running.id, 1, running.started_at]);
    await client.delete(vm);
    await agent.stopped(id);
    const stopped = await stateOf(api, owner, id);
    assert.ok(stopped.stopped_at);
    assert.equal(stopped.reason?.actor, owner.user_id, 'who asked for the stop stays known');
    await client.post(vm);
    await agent.ready(id);
    assert.equal((await stateOf(api, owner, id)).boot, 2);
    assert.deepEqual(await eventTypes(id), [
      'instance.created',
      'vm.started',
      'vm.restarted',
      'vm.stopped',
      'vm.started',
    ]);
  });

  test('a disk that continued from its last durable generation says so', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.failed(id);
    await client.post(`/v1/instances/${id}/vm`);
    const assignment = await agent.assigned(id, 'the next boot', (each) => each.boot === 2);
    assert.equal(assignment.previous_failed, true);
    assert.equal(assignment.own_since, 1);
    await agent.ready(id, { code: 'recovered', message: 'Continued from generation 3.' });
    const vm = await stateOf(api, owner, id);
    assert.deepEqual(vm.reason, {
      code: 'recovered',
      message: 'Continued from generation 3.',
      actor: api.host_id,
    });
    assert.ok((await eventTypes(id)).includes('vm.recovered'));
  });

  test('a stop reports the loss of a failed VM, and the next start does not repeat it', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.failed(id);
    await client.delete(`/v1/instances/${id}/vm`);
    assert.equal((await agent.known(id)).previous_failed, true);
    const recovered = { code: 'recovered', message: 'The next one continues from generation 3.' } as const;
    await agent.stoppedWithLoss(id, recovered);
    assert.deepEqual((await stateOf(api, owner, id)).reason, { ...recovered, actor: api.host_id });
    assert.ok((await eventTypes(id)).includes('vm.recovered'));
    await client.post(`/v1/instances/${id}/vm`);
    const assignment = await agent.assigned(id, 'the next boot', (each) => each.boot === 2);
    assert.equal(assignment.previous_failed, false);
  });

  test('a failed VM that is started and stopped before it runs is saved', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.failed(id);
    for (const boot of [2, 3]) {
      await client.post(`/v1/instances/${id}/vm`);
      const assignment = await agent.assigned(id, 'the next boot', (each) => each.boot === boot);
      assert.equal(assignment.previous_failed, boot === 2);
      await client.delete(`/v1/instances/${id}/vm`);
      await agent.stopped(id);
    }
  });

  test('a start that failed before its guest ran reports no loss', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    await agent.failed(id, 'start_failed');
    await client.post(`/v1/instances/${id}/vm`);
    const assignment = await agent.assigned(id, 'the next boot', (each) => each.boot === 2);
    assert.equal(assignment.previous_failed, false);
  });

  test('force reaches the host, also on a stop that has begun', async () => {
    const { id } = await instanceIn(api, owner, 'stopping');
    assert.equal((await agent.known(id)).force, false);
    const answer = await client.delete<VmOut>(`/v1/instances/${id}/vm?force=true`);
    assert.equal(answer.status, 202);
    assert.equal((await agent.known(id)).force, true);
  });

  test('without the object store a stop stays in stopping, with the reason', async () => {
    const { id } = await instanceIn(api, owner, 'stopping');
    const reason = { code: 'flush_pending', message: 'The object store is away.' } as const;
    await agent.observe(id, { kind: 'flush_pending', reason });
    const vm = await stateOf(api, owner, id);
    assert.deepEqual([vm.state, vm.reason?.code], ['stopping', 'flush_pending']);
    await agent.stopped(id);
    assert.equal((await stateOf(api, owner, id)).state, 'stopped');
  });
});

describe('?wait', () => {
  test('returns when the state is reached', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    const waiting = client.get<VmOut>(`/v1/instances/${id}/vm?wait=running&timeout_seconds=60`);
    await agent.ready(id);
    const { status, body } = await waiting;
    assert.deepEqual([status, body.state], [200, 'running']);
  });
  test('returns at once in that state', async () => {
    const { id } = await api.instance(owner);
    const { body } = await client.get<VmOut>(`/v1/instances/${id}/vm?wait=stopped&timeout_seconds=60`);
    assert.equal(body.state, 'stopped');
  });
  test('returns when the VM fails instead', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    const waiting = client.get<VmOut>(`/v1/instances/${id}/vm?wait=running&timeout_seconds=60`);
    await agent.failed(id);
    assert.equal((await waiting).body.state, 'failed');
  });
  test('returns at once for a failed VM', async () => {
    const { id } = await instanceIn(api, owner, 'failed');
    const answer = await client.get<VmOut>(`/v1/instances/${id}/vm?wait=running&timeout_seconds=60`);
    assert.equal(answer.body.state, 'failed');
  });
  test('returns the current state at the timeout', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    const began = Date.now();
    const answer = await client.get<VmOut>(`/v1/instances/${id}/vm?wait=running&timeout_seconds=1`);
    assert.deepEqual([answer.status, answer.body.state], [200, 'starting']);
    assert.ok(Date.now() - began >= 950);
  });
  test('more waiters than database connections all get their answer', async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    const waiting = Array.from({ length: 40 }, () =>
      client.get<VmOut>(`/v1/instances/${id}/vm?wait=running&timeout_seconds=60`),
    );
    await agent.ready(id);
    for (const answer of await Promise.all(waiting)) assert.equal(answer.body.state, 'running');
  });
});

describe('400', () => {
  for (const query of [
    'wait=started',
    'timeout_seconds=5',
    'wait=running&timeout_seconds=0',
    'wait=running&timeout_seconds=61',
    'wait=running&timeout_seconds=1.5',
    'wait=running&wait=stopped',
    'state=running',
  ]) {
    test(`GET …/vm?${query}`, async () => {
      const { id } = await api.instance(owner);
      assertError(await client.get(`/v1/instances/${id}/vm?${query}`), 'INVALID_REQUEST');
    });
  }
  for (const [method, path] of [
    ['POST', 'vm'],
    ['DELETE', 'vm'],
    ['POST', 'vm/restart'],
    ['POST', 'vm/suspend'],
    ['POST', 'vm/flush'],
  ] as const) {
    test(`${method} …/${path} refuses unknown fields and parameters, and changes nothing`, async () => {
      const { id } = await instanceIn(api, owner, 'running');
      const target = `/v1/instances/${id}/${path}`;
      assertError(await client.call(method, target, { json: { force: true } }), 'INVALID_REQUEST', /force/);
      assertError(await client.call(method, `${target}?dry_run=1`), 'INVALID_REQUEST', /dry_run/);
      assert.equal((await stateOf(api, owner, id)).state, 'running');
    });
  }
  test('DELETE …/vm?force=yes', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    assertError(await client.delete(`/v1/instances/${id}/vm?force=yes`), 'INVALID_REQUEST', /force/);
  });
});

describe('404', () => {
  for (const id of [newId('inst'), newId('vm'), 'inst_x', 'x', '..%2f..%2fme', '%00']) {
    test(`of ${id}`, async () => {
      for (const [method, path] of [
        ['GET', 'vm'],
        ['POST', 'vm'],
        ['DELETE', 'vm'],
        ['POST', 'vm/restart'],
        ['POST', 'vm/suspend'],
        ['POST', 'vm/flush'],
      ] as const) {
        assertError(await client.call(method, `/v1/instances/${id}/${path}`), 'NOT_FOUND');
      }
    });
  }
});

describe('409', () => {
  test('every call on an instance that is being deleted', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await client.delete(`/v1/instances/${id}`);
    for (const [method, path] of [
      ['POST', 'vm'],
      ['DELETE', 'vm'],
      ['POST', 'vm/restart'],
      ['POST', 'vm/flush'],
    ] as const) {
      assertError(await client.call(method, `/v1/instances/${id}/${path}`), 'CONFLICT', /being deleted/);
    }
  });
});

describe('503', () => {
  const cases = [
    ['no host is connected', { ...FACTS, images: [] }, /image/],
    ['no host has the memory', { ...FACTS, memory_mib: 100 }, /memory/],
  ] as const;
  for (const [what, facts, message] of cases) {
    test(`a start while ${what} says so and changes nothing`, async (t) => {
      const { id } = await api.instance(owner);
      t.after(() => agent.connect());
      await agent.connect(facts);
      const answer = await client.post(`/v1/instances/${id}/vm`);
      assertError(answer, 'UNAVAILABLE', message);
      assert.match(String(answer.headers['retry-after']), /^\d+$/);
      assert.equal((await stateOf(api, owner, id)).boot, 0);
    });
  }
  test('a start while no host has reported recently', async (t) => {
    const { id } = await api.instance(owner);
    await agent.silence();
    t.after(() => agent.connect());
    await api.db
      .updateTable('hosts')
      .set({ last_seen_at: new Date(Date.now() - 21_000) })
      .execute();
    assertError(await client.post(`/v1/instances/${id}/vm`), 'UNAVAILABLE', /No host/);
  });
});

describe('deadlines', () => {
  for (const state of ['starting', 'restarting', 'suspending'] as const) {
    test(`a VM that is ${state} for too long fails by itself`, async () => {
      const { id } = await instanceIn(api, owner, state);
      const vms = api.db.updateTable('vms').where('instance_id', '=', id);
      assert.equal(await applyDeadlines(api.db), 0);
      await vms.set({ deadline_at: new Date(Date.now() - 1) }).execute();
      const waiting = client.get<VmOut>(`/v1/instances/${id}/vm?wait=running&timeout_seconds=60`);
      assert.equal(await applyDeadlines(api.db), 1);
      const { body } = await waiting;
      assert.deepEqual([body.state, body.reason?.code], ['failed', `${state}_timeout`]);
      assert.equal(body.reason?.actor, 'system');
      assert.ok((await eventTypes(id)).includes('vm.failed'));
      assert.equal(await applyDeadlines(api.db), 0);
      assert.equal((await agent.known(id)).desired, 'failed');
    });
  }
  test("a deadline that passed while the control plane was away waits for the host's report", async () => {
    const { id } = await instanceIn(api, owner, 'starting');
    const late = await instanceIn(api, owner, 'starting');
    const passed = { deadline_at: new Date(Date.now() - 1) };
    for (const each of [id, late.id])
      await api.db.updateTable('vms').where('instance_id', '=', each).set(passed).execute();
    const watch = new DeadlineMonitor();
    await enforceDeadlines(api.db, watch, () => 0);
    await agent.ready(id);
    for (let now_ms = 0; now_ms <= GRACE_MS; now_ms += 5_000)
      await enforceDeadlines(api.db, watch, () => now_ms);
    assert.equal((await stateOf(api, owner, id)).state, 'running');
    assert.equal((await stateOf(api, owner, late.id)).state, 'failed');
  });
  test('count by the clock of the database, like all times of a VM, whatever that of a control plane says', async (t) => {
    t.mock.timers.enable({ apis: ['Date'], now: Date.now() - 3_600_000 });
    const early = await instanceIn(api, owner, 'starting');
    t.mock.timers.setTime(Date.now() + 7_200_000);
    const late = await instanceIn(api, owner, 'running');
    await agent.failed(late.id);
    t.mock.timers.reset();
    await applyDeadlines(api.db);
    assert.equal((await stateOf(api, owner, early.id)).state, 'starting');
    const times = await api.db
      .selectFrom('vms')
      .select(sql<boolean>`started_at <= stopped_at and stopped_at <= now()`.as('have_passed'))
      .where('instance_id', '=', late.id)
      .executeTakeFirst();
    assert.deepEqual(times, { have_passed: true });
  });
  test('running, stopping, stopped and failed have no deadline', async () => {
    for (const state of ['running', 'stopping', 'failed'] as const) {
      const { id } = await instanceIn(api, owner, state);
      const row = await api.db
        .selectFrom('vms')
        .select('deadline_at')
        .where('instance_id', '=', id)
        .executeTakeFirstOrThrow();
      assert.equal(row.deadline_at, null, state);
    }
  });
});

test('its host learns whether a boot has run its guest, so that a machine without a trace of it does not begin it again', async () => {
  const { id } = await api.instance(owner);
  const path = `/v1/instances/${id}/vm`;
  await client.post(path);
  assert.equal((await agent.assigned(id)).guest_ran, false);
  await agent.ready(id);
  const ran = async () => (await agent.assigned(id)).guest_ran;
  assert.equal(await ran(), true);
  await client.post(`${path}/restart`);
  assert.equal(await ran(), true);
  await agent.ready(id);
  await client.delete(path);
  await agent.stopped(id);
  await client.post(path);
  assert.equal(await ran(), false);
});
