/** The list of one's sessions, and ending them. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { makeSession, makeSudo } from '../support/people.ts';

const api = await apiForFile({ context: { trusted_proxies: ['127.0.0.1/32'] } });
const PASSWORD = 'correct horse battery';

interface SessionOut {
  readonly id: string;
  readonly ip: string;
  readonly user_agent: string;
  readonly created_at: string;
  readonly last_seen_at: string;
  readonly ends_at: string;
  readonly current: boolean;
}
const list = (session: string, query = '') =>
  api.as(session).get<Page<SessionOut>>(`/v1/auth/sessions${query}`);

describe('200', () => {
  test('address, program, times, and which session is the current one; never a token', async () => {
    const who = await api.person({ password: PASSWORD });
    const headers = { 'user-agent': 'Explorer/1.0', 'x-forwarded-for': '192.0.2.7' };
    const body = { email: who.email, password: PASSWORD };
    const opened = await api.client.post<{ session_token: string }>('/v1/auth/login', body, { headers });
    const answer = await list(opened.body.session_token);
    assert.equal(answer.status, 200, answer.text);
    const [newest, oldest] = answer.body.data;
    assert.equal(answer.body.data.length, 2);
    assert.deepEqual([newest?.ip, newest?.user_agent, newest?.current], ['192.0.2.7', 'Explorer/1.0', true]);
    assert.deepEqual([oldest?.id, oldest?.current], [who.session_id, false]);
    const days = (Date.parse(newest?.ends_at ?? '') - Date.parse(newest?.created_at ?? '')) / 86_400_000;
    assert.ok(Math.abs(days - 30) < 0.001);
    assert.ok(!/berth_(sess|refr|sudo)_|hash/.test(answer.text));
  });

  test('ended sessions and those of other users are not listed', async () => {
    const who = await api.person();
    const { session_id } = await makeSession(api.db, who.user_id);
    await api.db
      .updateTable('sessions')
      .set({ ends_at: new Date(Date.now() - 1_000) })
      .where('id', '=', session_id)
      .execute();
    const ids = (await list(who.session)).body.data.map(({ id }) => id);
    assert.deepEqual(ids, [who.session_id]);
  });

  test('pages, newest first', async () => {
    const who = await api.person();
    const made: string[] = [who.session_id];
    for (let i = 0; i < 2; i++) made.push((await makeSession(api.db, who.user_id)).session_id);
    const first = (await list(who.session, '?limit=2')).body;
    const second = (await list(who.session, `?limit=2&cursor=${first.next_cursor}`)).body;
    const seen = [...first.data, ...second.data].map(({ id }) => id);
    assert.deepEqual(seen, made.toSorted().toReversed());
    assert.equal(second.next_cursor, null);
  });

  test('last_seen_at is written at most once a minute', async () => {
    const who = await api.person();
    const seenAt = async () => (await list(who.session)).body.data[0]?.last_seen_at ?? '';
    const first = await seenAt();
    assert.equal(await seenAt(), first);
    await api.db
      .updateTable('sessions')
      .set({ last_seen_at: new Date(Date.now() - 61_000) })
      .where('id', '=', who.session_id)
      .execute();
    assert.ok(Date.now() - Date.parse(await seenAt()) < 30_000);
  });
});

describe('all others at once', () => {
  test('end, are counted, and audited; this one and its sudo grant continue', async () => {
    const who = await api.person();
    const stranger = await api.person();
    const headers = await makeSudo(api.db, who);
    const others = [await makeSession(api.db, who.user_id), await makeSession(api.db, who.user_id)];
    const end = () => api.as(who).call<{ count: number }>('DELETE', '/v1/auth/sessions');
    assert.deepEqual([(await end()).body, (await end()).body], [{ count: 2 }, { count: 0 }]);
    for (const { session } of others) assertError(await api.as(session).get('/v1/me'), 'UNAUTHENTICATED');
    assert.equal((await api.as(stranger).get('/v1/me')).status, 200);
    const { body } = await api.as(who).get<Page<{ action: string }>>('/v1/audit');
    const actions = body.data.map(({ action }) => action);
    assert.deepEqual(actions, ['auth.revoke_other_sessions']);
    assert.equal((await api.as(who).call('DELETE', '/v1/me', { headers })).status, 204);
  });
});

describe('204', () => {
  test('a revoked session gets no more tokens, and the others continue', async () => {
    const who = await api.person();
    const other = await makeSession(api.db, who.user_id);
    assert.equal((await api.as(who).delete(`/v1/auth/sessions/${other.session_id}`)).status, 204);
    assertError(await api.as(other.session).get('/v1/me'), 'UNAUTHENTICATED');
    assert.equal((await api.as(who).get('/v1/me')).status, 200);
    const tokens = await api.db
      .selectFrom('session_tokens')
      .select('session_id')
      .where('session_id', '=', other.session_id)
      .execute();
    assert.deepEqual(tokens, []);
  });

  test('a session may revoke itself', async () => {
    const who = await api.person();
    assert.equal((await api.as(who).delete(`/v1/auth/sessions/${who.session_id}`)).status, 204);
    assertError(await api.as(who).get('/v1/me'), 'UNAUTHENTICATED');
  });
});

describe('400', () => {
  test('an unknown parameter, a body', async () => {
    const who = await api.person();
    assertError(await list(who.session, '?state=open'), 'INVALID_REQUEST');
    const answer = await api.as(who).delete(`/v1/auth/sessions/${who.session_id}`, { all: true });
    assertError(answer, 'INVALID_REQUEST');
    assert.equal((await api.as(who).get('/v1/me')).status, 200);
  });
});

describe('404', () => {
  test("another user's session, an unknown one and a malformed id get the same answer", async () => {
    const who = await api.person();
    const other = await api.person({ org_id: who.org_id, role: 'member' });
    const none = await api.as(who).delete(`/v1/auth/sessions/${newId('sess')}`);
    assertError(none, 'NOT_FOUND');
    for (const id of [other.session_id, 'x', 'sess_x', who.user_id]) {
      const answer = await api.as(who).delete(`/v1/auth/sessions/${id}`);
      assert.deepEqual(withoutRequestId(answer), withoutRequestId(none));
    }
    assert.equal((await api.as(other).get('/v1/me')).status, 200);
  });
});
