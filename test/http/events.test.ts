/** GET /v1/events: the organisation's events as a list, filtered, and as far as the caller's scopes go. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import type { Tx } from '../../src/control-plane/db/pool.ts';
import { append, appendPrivate } from '../../src/control-plane/events/append.ts';
import { EVENT_TYPES, type EventType, PRIVATE_EVENT_TYPES } from '../../src/control-plane/events/model.ts';
import { deleteOldEvents, listEvents, mayConcern } from '../../src/control-plane/events/store.ts';
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
