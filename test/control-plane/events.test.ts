/**
 * GET /v1/events: the organisation's events as a list, filtered by time, type and actor, and as far as the caller's scopes go; and who
 * is named by the events that complete what somebody asked for, or what happened by itself.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { type Tx, transaction } from '../../src/control-plane/db/pool.ts';
import { append, appendPrivate } from '../../src/control-plane/events/append.ts';
import { EVENT_TYPES, type EventType, PRIVATE_EVENT_TYPES } from '../../src/control-plane/events/model.ts';
import { deleteOldEvents, listEvents, mayConcern } from '../../src/control-plane/events/store.ts';
import { wakeVm } from '../../src/control-plane/vms/start-vm.ts';
import { stopIdleVm } from '../../src/control-plane/vms/stop-vm.ts';
import { type EventId, type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, makeServiceKey, type Person, randomPublicKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const { db, agent } = api;
const PATH = '/v1/events';

interface EventOut {
  readonly id: EventId;
  readonly type: string;
  readonly timestamp: string;
  readonly data: Record<string, unknown>;
}

async function events(who: Person | string, query = ''): Promise<Page<EventOut>> {
  await raiseNotificationsOfEvents(db);
  const answer = await api.as(who).get<Page<EventOut>>(`${PATH}${query}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}
const typesOf = async (who: Person | string, query = '') =>
  (await events(who, query)).data.map(({ type }) => type);

/** Events of every public type, in the order of the model. */
async function withAll(): Promise<Person> {
  const who = await api.person();
  const { org_id } = who;
  for (const type of EVENT_TYPES) await append(db, { org_id, type, data: {}, actor: 'system' });
  return who;
}

describe('200', () => {
  test('an event has id, type, timestamp, and its resource with organisation, actor and sequence', async () => {
    const who = await api.person();
    const instance = await instanceIn(api, who, 'running');
    const { data } = await events(who);
    assert.deepEqual(
      data.map(({ type }) => type),
      ['vm.started', 'instance.created'],
    );
    const [started, created] = data;
    assert.ok(started && created);
    assert.deepEqual(Object.keys(started).sort(), ['actor_name', 'data', 'id', 'timestamp', 'type']);
    assert.match(started.id, /^evt_/);
    assert.match(started.timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    const { org_id, actor, sequence } = created.data;
    assert.deepEqual({ org_id, actor, sequence }, { org_id: who.org_id, actor: who.user_id, sequence: 1 });
    assert.deepEqual([started.data['actor'], started.data['sequence']], [who.user_id, 2]);
    assert.equal((started.data['instance'] as { id: string }).id, instance.id);
  });

  test('newest first, page by page, complete while new ones arrive', async () => {
    const who = await withAll();
    const all = (await events(who)).data.map(({ id }) => id);
    assert.equal(all.length, EVENT_TYPES.length);
    const seen: string[] = [];
    for (let cursor: string | null = ''; cursor !== null; ) {
      const page = await events(who, `?limit=5${cursor === '' ? '' : `&cursor=${cursor}`}`);
      seen.push(...page.data.map(({ id }) => id));
      cursor = page.next_cursor;
      await append(db, { org_id: who.org_id, type: 'webhook.ping', data: {}, actor: 'system' });
    }
    assert.deepEqual(seen, all);
  });

  test('filtered by type', async () => {
    const who = await withAll();
    for (const type of EVENT_TYPES) assert.deepEqual(await typesOf(who, `?type=${type}`), [type]);
  });

  test('filtered by resource: an instance, an API key, an SSH key, a member, a webhook', async () => {
    const who = await api.person();
    const [one] = [await instanceIn(api, who, 'running'), await instanceIn(api, who, 'running')];
    await agent.failed(one.id);
    const key = await api.as(who).post<{ id: string }>('/v1/api-keys', { name: 'a', scope: 'vm:read' });
    await api.as(who).delete(`/v1/api-keys/${key.body.id}`);
    const line = randomPublicKey().line;
    const ssh = await api.as(who).post<{ id: string }>('/v1/me/ssh-keys', { name: 'a', public_key: line });
    const member = await api.person({ org_id: who.org_id, role: 'member' });
    await api.as(who).delete(`/v1/orgs/${who.org_id}/members/${member.user_id}`);
    const webhook = newId('wh');
    const data = { webhook: { id: webhook } };
    await append(db, { org_id: who.org_id, type: 'webhook.disabled', data, actor: 'system' });
    const of = (id: string) => typesOf(who, `?resource=${id}`);
    assert.deepEqual(await of(one.id), ['vm.failed', 'vm.started', 'instance.created']);
    assert.deepEqual(await of(key.body.id), ['api_key.revoked', 'api_key.created']);
    assert.deepEqual(await of(ssh.body.id), ['ssh_key.added']);
    assert.deepEqual(await of(member.user_id), ['member.removed']);
    assert.deepEqual(await of(webhook), ['webhook.disabled']);
    assert.deepEqual(await of(newId('inst')), []);
    assert.deepEqual(await typesOf(who, `?resource=${one.id}&type=vm.failed`), ['vm.failed']);
  });

  test('a fork is in the events of its parent too, in order and page by page', async () => {
    const who = await api.person();
    const parent = await instanceIn(api, who, 'running');
    await api.agent.commit(parent.id, 1);
    const fork = async () =>
      (await api.as(who).post<{ id: InstanceId }>(`/v1/instances/${parent.id}/fork`, { name: newName() }))
        .body;
    const first = await fork();
    await api.as(who).delete(`/v1/instances/${parent.id}/vm`);
    await api.agent.stopped(parent.id);
    await fork();
    const of = `?resource=${parent.id}`;
    const all = ['instance.forked', 'vm.stopped', 'instance.forked', 'disk.flushed', 'vm.started'];
    assert.deepEqual(await typesOf(who, of), [...all, 'instance.created']);
    const page = await events(who, `${of}&limit=2`);
    assert.deepEqual(
      page.data.map(({ type }) => type),
      all.slice(0, 2),
    );
    const next = await typesOf(who, `${of}&limit=2&cursor=${page.next_cursor}`);
    assert.deepEqual(next, all.slice(2, 4));
    assert.equal((await events(who, `${of}&type=instance.forked`)).data.length, 2);
    assert.deepEqual(await typesOf(who, `${of}&type=vm.failed`), []);
    assert.deepEqual(await typesOf(who, `?resource=${first.id}`), ['instance.forked']);
  });

  test('events show SSH keys and the instance of a key set like the API', async () => {
    const who = await api.person();
    const line = randomPublicKey().line;
    const key = await api.as(who).post<{ id: string }>('/v1/me/ssh-keys', { name: 'a', public_key: line });
    const { id } = await api.instance(who);
    await api.as(who).put(`/v1/instances/${id}/ssh-keys`, { ssh_key_ids: [key.body.id] });
    const instance = await api.as(who).get(`/v1/instances/${id}`);
    await api.as(who).delete(`/v1/me/ssh-keys/${key.body.id}`);
    const dataOf = async (type: EventType) => (await events(who, `?type=${type}`)).data[0]?.data;
    assert.deepEqual((await dataOf('ssh_key.added'))?.['ssh_key'], key.body);
    assert.deepEqual((await dataOf('ssh_key.revoked'))?.['ssh_key'], key.body);
    assert.deepEqual((await dataOf('instance.ssh_keys_replaced'))?.['instance'], instance.body);
  });

  test('events of instances, VMs, disks, HTTP ports and keys need instances:read, the others org:read', async () => {
    const who = await withAll();
    const { key: instances } = await makeKey(db, who, 'instances:read');
    const { key: org } = await makeKey(db, who, 'org:read');
    const { key: robot } = await makeServiceKey(db, who.org_id, 'org:read');
    const others = EVENT_TYPES.filter((type) => /^(member|webhook)\./.test(type)).toReversed();
    assert.deepEqual(await typesOf(org), others);
    assert.deepEqual(await typesOf(robot), others);
    const rest = EVENT_TYPES.filter((type) => !others.includes(type)).toReversed();
    assert.deepEqual(await typesOf(instances), rest);
    assert.deepEqual(await typesOf(instances, '?type=member.added'), []);
    assert.deepEqual(await typesOf(org, '?type=vm.failed'), []);
  });

  test('every member sees them, but neither private events nor another organisation’s', async () => {
    const who = await withAll();
    const { org_id, user_id } = who;
    for (const type of PRIVATE_EVENT_TYPES) {
      await appendPrivate(db, { org_id, user_id, type, data: {}, actor: 'system' });
    }
    for (const role of ['member', 'billing'] as const) {
      const member = await api.person({ org_id, role });
      assert.deepEqual(await typesOf(member), EVENT_TYPES.toReversed());
    }
    assert.deepEqual(await typesOf(await api.person()), []);
  });

  test('events are deleted after 30 days', async () => {
    const who = await withAll();
    const newest = (await events(who, '?limit=1')).data[0];
    assert.ok(newest);
    await db
      .updateTable('events')
      .set({ created_at: sql`now() - interval '31 days'` })
      .where('org_id', '=', who.org_id)
      .where('id', '!=', newest.id)
      .execute();
    await deleteOldEvents(db);
    assert.deepEqual((await events(who)).data, [newest]);
  });
});

describe('400', () => {
  test('an unknown type or resource, a limit out of 1 to 200, a cursor of another filter', async () => {
    const who = await withAll();
    const private_type = `type=${PRIVATE_EVENT_TYPES[0]}`;
    const bad = ['type=vm', 'type=', private_type, 'type=vm.failed&type=vm.started', 'resource=x'];
    for (const query of [
      ...bad,
      'resource=org_1',
      'resource=',
      'limit=0',
      'limit=201',
      'cursor=x',
      'since=1',
    ]) {
      assertError(await api.as(who).get(`${PATH}?${query}`), 'INVALID_REQUEST');
    }
    const { next_cursor } = await events(who, '?limit=1');
    assertError(await api.as(who).get(`${PATH}?type=vm.failed&cursor=${next_cursor}`), 'INVALID_REQUEST');
  });
});

describe('403', () => {
  test('a key with neither scope', async () => {
    const { key } = await makeKey(db, await api.person(), 'vm:read webhooks:read');
    for (const path of [PATH, `${PATH}/stream`]) assertError(await api.as(key).get(path), 'FORBIDDEN');
  });
});

test('other events are found without reading the flushes', async () => {
  const who = await withAll();
  await raiseNotificationsOfEvents(db);
  await sql`
    insert into events (id, org_id, type, data, actor)
    select 'evt_' || lpad(n::text, 26, '0'), ${who.org_id}, 'disk.flushed', '{}', 'system'
    from generate_series(1, 20000) n`.execute(db);
  await raiseNotificationsOfEvents(db);
  await sql`analyze events`.execute(db);
  const rowsRead = (types: readonly EventType[], resource?: string) =>
    db.transaction().execute(async (tx) => {
      // What was read before over this connection may be counted with it.
      const before = await tuplesRead(tx);
      assert.equal((await listEvents(tx, { org_id: who.org_id, types, resource }, null, 50)).length, 1);
      return (await tuplesRead(tx)) - before;
    });
  const webhook = newId('wh');
  const data = { webhook: { id: webhook } };
  await append(db, { org_id: who.org_id, type: 'webhook.ping', data, actor: 'system' });
  await raiseNotificationsOfEvents(db);
  const of_webhooks = EVENT_TYPES.filter((type) => mayConcern(type, webhook));
  for (const read of [await rowsRead(['vm.failed']), await rowsRead(of_webhooks, webhook)]) {
    // What the planner reads of others is its choice.
    assert.ok(read < 2_000, `${read} rows were read`);
  }
  assert.deepEqual(await typesOf(who, `?resource=${webhook}`), ['webhook.ping']);
  assert.deepEqual(await typesOf(who, `?resource=${webhook}&type=vm.failed`), []);
});

/** Of events, over this connection. */
async function tuplesRead(tx: Tx): Promise<number> {
  const { rows } = await sql<{ read: number }>`
    select (seq_tup_read + idx_tup_fetch)::int as read from pg_stat_xact_user_tables
    where relname = 'events'`.execute(tx);
  return rows[0]?.read ?? 0;
}

test('an event that commits late is in the list after those that were dispatched before it', async () => {
  const who = await api.person();
  const id: InstanceId = newId('inst');
  assert.deepEqual(await typesOf(who, `?resource=${id}`), []);
  const held = Promise.withResolvers<void>();
  const appended = Promise.withResolvers<void>();
  const slow = db.transaction().execute(async (tx) => {
    await append(tx, { org_id: who.org_id, type: 'member.added', data: {}, actor: 'system' });
    appended.resolve();
    await held.promise;
  });
  await appended.promise;
  await append(db, { org_id: who.org_id, type: 'member.removed', data: {}, actor: 'system' });
  assert.deepEqual(await typesOf(who), ['member.removed']);
  held.resolve();
  await slow;
  assert.deepEqual(await typesOf(who), ['member.added', 'member.removed']);
});

interface ActedEvent {
  readonly id: string;
  readonly actor_name: string | null;
  readonly data: { readonly n: number; readonly actor: string };
}

/** Ten events of a day each, today's last; `n` counts the days back. */
async function tenDays(who: Person): Promise<void> {
  for (let n = 9; n >= 0; n--) {
    const actor = n % 2 === 0 ? who.user_id : 'system';
    const id = await append(db, { org_id: who.org_id, type: 'member.added', data: { n }, actor });
    const created_at = new Date(Date.now() - n * 86_400_000);
    await db.updateTable('events').set({ created_at }).where('id', '=', id).execute();
  }
  await raiseNotificationsOfEvents(db);
}
const daysAgo = (days: number) => new Date(Date.now() - days * 86_400_000).toISOString();

async function list(who: Person | string, query: Record<string, string>): Promise<Page<ActedEvent>> {
  const answer = await api.as(who).get<Page<ActedEvent>>(`${PATH}?${new URLSearchParams(query)}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}
const days = async (who: Person, query: Record<string, string>) =>
  (await list(who, query)).data.map(({ data }) => data.n);

describe('200', () => {
  test('since a time, until a time, and between two', async () => {
    const who = await api.person();
    await tenDays(who);
    assert.deepEqual(await days(who, { since: daysAgo(2.5) }), [0, 1, 2]);
    assert.deepEqual(await days(who, { until: daysAgo(7.5) }), [8, 9]);
    assert.deepEqual(await days(who, { since: daysAgo(5.5), until: daysAgo(3.5) }), [4, 5]);
  });

  test('of an actor: by id, by e-mail address in any case, by the name of a service account', async () => {
    const who = await api.person();
    await tenDays(who);
    const mine = [0, 2, 4, 6, 8];
    assert.deepEqual(await days(who, { actor: who.user_id }), mine);
    assert.deepEqual(await days(who, { actor: who.email.toUpperCase() }), mine);
    assert.deepEqual(await days(who, { actor: 'system', since: daysAgo(3.5) }), [1, 3]);
    const { key } = await makeServiceKey(db, who.org_id, '*');
    await db
      .updateTable('service_accounts')
      .set({ name: 'deploys' })
      .where('org_id', '=', who.org_id)
      .execute();
    assert.equal((await api.as(key).post('/v1/instances', { name: 'web' })).status, 201);
    await raiseNotificationsOfEvents(db);
    const [created] = (await list(who, { actor: 'deploys' })).data;
    assert.equal(created?.actor_name, 'deploys');
  });

  test('nothing for an actor who is unknown, or of another organisation', async () => {
    const [who, stranger] = [await api.person(), await api.person()];
    await tenDays(who);
    assert.deepEqual(await days(who, { actor: 'nobody@example.org' }), []);
    assert.deepEqual(await days(who, { actor: stranger.email }), []);
  });

  test('the pages keep their filter', async () => {
    const who = await api.person();
    await tenDays(who);
    const filter = { actor: who.user_id, since: daysAgo(7.5), limit: '2' };
    const first = await list(who, filter);
    const second = await list(who, { ...filter, cursor: first.next_cursor ?? '' });
    assert.deepEqual(
      [...first.data, ...second.data].map(({ data }) => data.n),
      [0, 2, 4, 6],
    );
    assert.equal(second.next_cursor, null);
    const query = new URLSearchParams({ ...filter, actor: 'system', cursor: first.next_cursor ?? '' });
    assertError(await api.as(who).get(`${PATH}?${query}`), 'INVALID_REQUEST');
  });

  test('an actor has a name for callers with org:read; hosts and system have none', async () => {
    const who = await api.person();
    await tenDays(who);
    const namesOf = async (as: Person | string) =>
      new Set((await list(as, {})).data.map((each) => each.actor_name));
    assert.deepEqual(await namesOf(who), new Set([who.email, null]));
    await api.instance(who);
    await raiseNotificationsOfEvents(db);
    const { key } = await makeKey(db, who, 'instances:read');
    assert.deepEqual(await namesOf(key), new Set([null]));
  });

  test('a former member has no name, and is not found by the address of today', async () => {
    const owner = await api.person();
    const gone = await api.person({ org_id: owner.org_id, role: 'member' });
    await tenDays(gone);
    await api.as(owner).delete(`/v1/orgs/${owner.org_id}/members/${gone.user_id}`);
    const email = `new-${gone.email}`;
    await db.updateTable('users').set({ email, email_key: email }).where('id', '=', gone.user_id).execute();
    const theirs = await list(owner, { actor: gone.user_id });
    assert.deepEqual(new Set(theirs.data.map(({ actor_name }) => actor_name)), new Set([null]));
    assert.deepEqual((await list(owner, { actor: email })).data, []);
  });
});

describe('400', () => {
  test('a time that is none', async () => {
    const who = await api.person();
    for (const query of ['since=yesterday', 'until=2026-02-30T00:00:00Z', 'since=', 'actor=']) {
      assertError(await api.as(who).get(`${PATH}?${query}`), 'INVALID_REQUEST');
    }
  });
});

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
