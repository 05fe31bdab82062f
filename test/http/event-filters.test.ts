/** GET /v1/events by time and actor, and the names of actors. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { append } from '../../src/control-plane/events/append.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, makeServiceKey, type Person } from '../support/people.ts';

const api = await apiForFile();
const { db } = api;
const PATH = '/v1/events';

interface EventOut {
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

async function list(who: Person | string, query: Record<string, string>): Promise<Page<EventOut>> {
  const answer = await api.as(who).get<Page<EventOut>>(`${PATH}?${new URLSearchParams(query)}`);
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
