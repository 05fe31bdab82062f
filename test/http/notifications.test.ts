/** GET /v1/notifications and what one does with them. What raises them is in notification-kinds.test.ts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { KIND_NAMES } from '../../src/control-plane/notifications/model.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import {
  appendNotifyingEvent,
  type NotificationOut,
  notificationsOf,
  raiseNotificationsOfEvents,
} from '../support/notifications.ts';
import {
  makeKey,
  makeNotification,
  makeServiceAccount,
  makeServiceKey,
  type Person,
} from '../support/people.ts';

const api = await apiForFile();
const PATH = '/v1/notifications';

async function withSome(count: number): Promise<Person> {
  const who = await api.person();
  for (let n = 0; n < count; n++) await appendNotifyingEvent(api.db, who);
  await raiseNotificationsOfEvents(api.db);
  return who;
}
const list = (who: Person | string, query = '') => api.as(who).get<Page<NotificationOut>>(`${PATH}${query}`);
const unread = async (who: Person | string) =>
  (await api.as(who).get<{ count: number }>(`${PATH}/unread-count`)).body.count;

describe('200', () => {
  test('a notification has exactly the documented fields', async () => {
    const who = await withSome(1);
    const [item] = await notificationsOf(api.as(who));
    assert.ok(item);
    assert.deepEqual(Object.keys(item).sort(), [
      ...['body', 'count', 'created_at', 'data', 'id', 'kind', 'read_at', 'resource', 'severity', 'title'],
    ]);
    assert.match(item.id, /^ntf_/);
    assert.deepEqual(
      [item.kind, item.severity, item.count, item.read_at],
      ['ssh_key.added', 'info', 1, null],
    );
    assert.equal(item.resource?.type, 'ssh_key');
    assert.match(item.created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  });

  test('50 without limit, up to 100 with it, newest first', async () => {
    const who = await withSome(120);
    const page = await list(who);
    assert.equal(page.body.data.length, 50);
    assert.equal((await list(who, '?limit=100')).body.data.length, 100);
    assert.equal((await list(who, '?limit=1')).body.data.length, 1);
    const times = page.body.data.map((each) => each.created_at);
    assert.deepEqual(times, times.toSorted().reverse());
  });

  test('pages have neither gaps nor duplicates while new ones arrive', async () => {
    const who = await withSome(25);
    const before = (await notificationsOf(api.as(who), '?limit=100')).map(({ id }) => id);
    const seen: string[] = [];
    for (let cursor: string | null = ''; cursor !== null; ) {
      const next: string = cursor === '' ? '' : `&cursor=${cursor}`;
      const page = await list(who, `?limit=10${next}`);
      seen.push(...page.body.data.map(({ id }) => id));
      cursor = page.body.next_cursor;
      await appendNotifyingEvent(api.db, who);
      await raiseNotificationsOfEvents(api.db);
    }
    assert.deepEqual(seen, before);
  });

  test('the filters unread and read work; a cursor is valid for its filter only', async () => {
    const who = await withSome(3);
    const [first] = await notificationsOf(api.as(who));
    await api.as(who).patch(`${PATH}/${first?.id}`, { read: true });
    assert.equal((await notificationsOf(api.as(who), '?status=unread')).length, 2);
    assert.deepEqual(
      (await notificationsOf(api.as(who), '?status=read')).map(({ id }) => id),
      [first?.id],
    );
    const page = await list(who, '?status=unread&limit=1');
    const { next_cursor } = page.body;
    assert.ok(next_cursor);
    assert.equal((await list(who, `?status=unread&limit=1&cursor=${next_cursor}`)).body.data.length, 1);
    assertError(await list(who, `?limit=1&cursor=${next_cursor}`), 'INVALID_REQUEST');
  });

  test('a key lists its creator’s, a service account its own', async () => {
    const who = await withSome(2);
    const { key } = await makeKey(api.db, who, 'notifications:read');
    assert.equal(await unread(key), 2);
    const account = await makeServiceAccount(api.db, who.org_id, '*');
    const { key: robot } = await makeServiceKey(api.db, who.org_id, '*', undefined, account);
    assert.deepEqual(await notificationsOf(api.as(robot)), []);
    await makeNotification(api.db, account);
    assert.equal((await notificationsOf(api.as(robot))).length, 1);
    assert.equal(await unread(robot), 1);
    assert.equal(await unread(who), 2);
  });

  test('read and unread can be repeated; read_at keeps the first time', async () => {
    const who = await withSome(1);
    const [item] = await notificationsOf(api.as(who));
    const mark = (read: boolean) => api.as(who).patch<NotificationOut>(`${PATH}/${item?.id}`, { read });
    const first = await mark(true);
    assert.equal(first.status, 200);
    assert.ok(first.body.read_at);
    assert.deepEqual((await mark(true)).body, first.body);
    assert.equal(await unread(who), 0);
    assert.equal((await mark(false)).body.read_at, null);
    assert.equal(await unread(who), 1);
  });

  test('read-all returns how many it changed', async () => {
    const who = await withSome(4);
    const [newest] = await notificationsOf(api.as(who));
    await api.as(who).patch(`${PATH}/${newest?.id}`, { read: true });
    const all = () => api.as(who).post<{ count: number }>(`${PATH}/read-all`);
    assert.deepEqual((await all()).body, { count: 3 });
    assert.deepEqual((await all()).body, { count: 0 });
    assert.equal(await unread(who), 0);
  });

  test('read-all up to a notification, or up to a time, leaves later ones', async () => {
    const who = await withSome(3);
    const [, second] = await notificationsOf(api.as(who));
    const readAll = (before: string | undefined) =>
      api.as(who).post<{ count: number }>(`${PATH}/read-all`, { before });
    assert.deepEqual((await readAll(second?.id)).body, { count: 2 });
    assert.deepEqual((await readAll('2020-01-01T00:00:00Z')).body, { count: 0 });
    await appendNotifyingEvent(api.db, who);
    await raiseNotificationsOfEvents(api.db);
    const [newest] = await notificationsOf(api.as(who));
    assert.deepEqual((await readAll(newest?.created_at)).body, { count: 2 });
  });

  test('preferences: all by mail by default; PUT replaces them', async () => {
    const who = await api.person();
    const path = `${PATH}/preferences`;
    type Preferences = {
      mail: Record<string, boolean>;
      always: string[];
      descriptions: Record<string, string>;
    };
    const first = (await api.as(who).get<Preferences>(path)).body;
    assert.deepEqual(Object.keys(first.mail).sort(), KIND_NAMES.toSorted());
    assert.ok(Object.values(first.mail).every(Boolean));
    assert.deepEqual(Object.keys(first.descriptions).sort(), KIND_NAMES.toSorted());
    assert.match(first.descriptions['vm.failed'] ?? '', /^A VM has failed/);
    const put = await api.as(who).put<Preferences>(path, { mail: { 'vm.failed': false } });
    assert.equal(put.status, 200);
    assert.equal(put.body.mail['vm.failed'], false);
    assert.deepEqual((await api.as(who).get<Preferences>(path)).body, put.body);
    const next = await api.as(who).put<Preferences>(path, { mail: { 'vm.recovered': false } });
    assert.deepEqual([next.body.mail['vm.failed'], next.body.mail['vm.recovered']], [true, false]);
    assert.equal(
      (await api.as(who).put(path, { mail: next.body.mail })).status,
      200,
      'what was got can be put',
    );
  });
});

describe('400', () => {
  test('an unknown status, a limit out of 1 to 100, a foreign cursor', async () => {
    const who = await api.person();
    for (const query of [
      'status=all',
      'status=',
      'limit=0',
      'limit=101',
      'limit=x',
      'cursor=abc',
      'kind=x',
    ]) {
      assertError(await list(who, `?${query}`), 'INVALID_REQUEST');
    }
  });

  test('a cursor of another user', async () => {
    const who = await withSome(2);
    const { next_cursor } = (await list(who, '?limit=1')).body;
    assertError(await list(await api.person(), `?limit=1&cursor=${next_cursor}`), 'INVALID_REQUEST');
  });

  test('a body without the required fields', async () => {
    const who = await withSome(1);
    const [item] = await notificationsOf(api.as(who));
    for (const body of [{}, { read: 'yes' }, { read: true, more: 1 }]) {
      assertError(await api.as(who).patch(`${PATH}/${item?.id}`, body), 'INVALID_REQUEST');
    }
    for (const before of [
      'yesterday',
      '2026-13-01T00:00:00Z',
      '2026-02-30T00:00:00Z',
      '2026-01-01',
      'evt_1',
      '',
    ]) {
      assertError(await api.as(who).post(`${PATH}/read-all`, { before }), 'INVALID_REQUEST');
    }
    assert.equal(await unread(who), 1);
  });

  test('a security kind, and a kind with its own mail, cannot be muted', async () => {
    const who = await api.person();
    const put = (mail: object) => api.as(who).put(`${PATH}/preferences`, { mail });
    const always = (await api.as(who).get<{ always: string[] }>(`${PATH}/preferences`)).body.always;
    assert.ok(
      ['account.locked', 'login.new_place', 'mfa.added', 'mfa.removed', 'password.changed'].every((k) =>
        always.includes(k),
      ),
    );
    for (const kind of always) assertError(await put({ [kind]: false }), 'INVALID_REQUEST', new RegExp(kind));
    for (const mail of [{ 'no.kind': true }, { 'vm.failed': 'no' }, []]) {
      assertError(await put(mail), 'INVALID_REQUEST');
    }
  });
});

describe('401', () => {
  test('without a credential', async () => {
    assertError(await api.client.get(PATH), 'UNAUTHENTICATED');
    assertError(await api.as('berth_sess_nobody').get(PATH), 'UNAUTHENTICATED');
  });
});

describe('403', () => {
  test('a service account has no preferences', async () => {
    const { key } = await makeServiceKey(api.db, (await api.person()).org_id, '*');
    assertError(await api.as(key).get(`${PATH}/preferences`), 'FORBIDDEN');
  });
});

describe('404', () => {
  test("another user's notification, an unknown one, a malformed id", async () => {
    const who = await withSome(1);
    const [item] = await notificationsOf(api.as(who));
    const other = await api.person({ org_id: who.org_id, role: 'admin' });
    for (const id of [item?.id, 'ntf_00000000000000000000000000', 'x']) {
      assertError(await api.as(other).patch(`${PATH}/${id}`, { read: true }), 'NOT_FOUND');
    }
    assert.equal(await unread(who), 1);
  });
});
