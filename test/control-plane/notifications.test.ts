/**
 * GET /v1/notifications and what one does with them: counts stay exact, and nothing unseen is marked as read, whatever happens at the same
 * time. What raises them is in notification-kinds.test.ts.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { deleteServiceAccount } from '../../src/control-plane/api-keys/store.ts';
import { type Tx, transaction } from '../../src/control-plane/db/pool.ts';
import { deleteUser } from '../../src/control-plane/identity/store.ts';
import { KIND_NAMES } from '../../src/control-plane/notifications/model.ts';
import {
  lockPeople,
  type Raise,
  type Recipient,
  raise,
} from '../../src/control-plane/notifications/store.ts';
import { deleteOrganisation } from '../../src/control-plane/organisations/store.ts';
import { rfc3339 } from '../../src/shared/clock.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';
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

const unreadOf = async (who: Person) =>
  (await api.as(who).get<{ count: number }>(`${PATH}/unread-count`)).body.count;

test('repeats on one resource within an hour are one unread notification with a count', async () => {
  const who = await api.person();
  const key = newId('key');
  for (let n = 0; n < 3; n++) await appendNotifyingEvent(api.db, who, key);
  await appendNotifyingEvent(api.db, who);
  await raiseNotificationsOfEvents(api.db);
  const before = await notificationsOf(api.as(who));
  assert.deepEqual(before.map(({ count }) => count).sort(), [1, 3]);
  await appendNotifyingEvent(api.db, who, key);
  await raiseNotificationsOfEvents(api.db);
  const after = await notificationsOf(api.as(who));
  assert.deepEqual(after.map(({ count }) => count).sort(), [1, 4]);
  const shown = (all: typeof before) => all.map(({ id, created_at }) => ({ id, created_at }));
  assert.deepEqual(shown(after), shown(before), 'ids, times and order stay');
  const repeated = after.find(({ count }) => count === 4);
  await api.as(who).patch(`${PATH}/${repeated?.id}`, { read: true });
  await appendNotifyingEvent(api.db, who, key);
  await raiseNotificationsOfEvents(api.db);
  assert.deepEqual(
    (await notificationsOf(api.as(who))).map(({ count }) => count).sort(),
    [1, 1, 4],
    'one that was read stays as it was read',
  );
});

test('after an hour a repeat is a new notification', async () => {
  const who = await api.person();
  const key = newId('key');
  await appendNotifyingEvent(api.db, who, key);
  await raiseNotificationsOfEvents(api.db);
  const old = new Date(Date.now() - 3_601_000);
  await api.db
    .updateTable('notifications')
    .set({ created_at: old })
    .where('recipient', '=', who.user_id)
    .execute();
  await appendNotifyingEvent(api.db, who, key);
  await raiseNotificationsOfEvents(api.db);
  assert.equal((await notificationsOf(api.as(who))).length, 2);
});

test('the unread count is exact after 50 concurrent changes', async () => {
  const who = await api.person();
  for (let n = 0; n < 60; n++) await appendNotifyingEvent(api.db, who);
  await raiseNotificationsOfEvents(api.db);
  const ids = (await notificationsOf(api.as(who), '?limit=100')).map(({ id }) => id);
  const mark = (id: string | undefined, read: boolean) => api.as(who).patch(`${PATH}/${id}`, { read });
  await Promise.all([
    // 30 are read, ten of them twice at once.
    ...ids.slice(0, 20).map((id) => mark(id, true)),
    ...ids.slice(0, 10).map((id) => mark(id, true)),
    ...ids.slice(20, 30).map((id) => mark(id, true)),
    // Ten new ones come.
    ...Array.from({ length: 10 }, async () => {
      await appendNotifyingEvent(api.db, who);
      await raiseNotificationsOfEvents(api.db);
    }),
  ]);
  await raiseNotificationsOfEvents(api.db);
  assert.equal(await unreadOf(who), 60 - 30 + 10);
  assert.equal((await notificationsOf(api.as(who), '?status=unread&limit=100')).length, 40);
});

test('read-all while new ones are raised reads exactly those that it counted', async () => {
  const who = await api.person();
  let read = 0;
  const readAll = async () => {
    const { body } = await api.as(who).post<{ count: number }>(`${PATH}/read-all`);
    read += body.count;
  };
  const raising = async () => {
    await appendNotifyingEvent(api.db, who);
    await raiseNotificationsOfEvents(api.db);
  };
  await Promise.all(Array.from({ length: 40 }, (_, n) => (n % 2 === 0 ? raising() : readAll())));
  await raiseNotificationsOfEvents(api.db);
  const left = await unreadOf(who);
  assert.equal(read + left, 20);
  const all = await notificationsOf(api.as(who), '?limit=100');
  assert.equal(all.length, 20);
  assert.equal(all.filter(({ read_at }) => read_at !== null).length, read);
});

test('read-all and concurrent repeats of one resource: each repeat is counted once', async () => {
  const who = await api.person();
  const key = newId('key');
  await Promise.all(
    Array.from({ length: 40 }, async (_, n) => {
      if (n % 2 === 0) return api.as(who).post(`${PATH}/read-all`);
      await appendNotifyingEvent(api.db, who, key);
      return raiseNotificationsOfEvents(api.db);
    }),
  );
  await raiseNotificationsOfEvents(api.db);
  const counts = (await notificationsOf(api.as(who), '?limit=100')).map(({ count }) => count);
  assert.equal(
    counts.reduce((sum, count) => sum + count, 0),
    20,
  );
});

test("a deleted account's notifications are deleted, and no more are raised for it", async () => {
  const owner = await api.person();
  const admin = await api.person({ org_id: owner.org_id, role: 'admin' });
  await appendNotifyingEvent(api.db, admin);
  await raiseNotificationsOfEvents(api.db);
  await appendNotifyingEvent(api.db, admin);
  await transaction(api.db, (tx) => deleteUser(tx, admin.user_id));
  await raiseNotificationsOfEvents(api.db);
  assert.equal(await kept(admin.user_id), 0);
});

test("so are a service account's, deleted by itself or with its organisation", async () => {
  const owner = await api.person();
  const [one, other] = [await robotOf(owner), await robotOf(owner)];
  for (const id of [one, other, owner.user_id]) await makeNotification(api.db, id);
  const gone = await api.as(owner).delete(`/v1/service-accounts/${one}`);
  assert.equal(gone.status, 204);
  assert.deepEqual([await kept(one), await kept(other)], [0, 1]);
  await transaction(api.db, (tx) => deleteOrganisation(tx, owner.org_id));
  assert.deepEqual([await kept(other), await kept(owner.user_id)], [0, 1]);
});

test('an account that is deleted while a notification is raised keeps none', async () => {
  const owner = await api.person();
  const robot = await robotOf(owner);
  const asked = { org_ids: [], roles: [], user_ids: [owner.user_id], service_account_ids: [robot] };
  const { deletions } = await transaction(api.db, async (tx) => {
    await lockPeople(tx, asked);
    const started = [
      transaction(api.db, (other) => deleteUser(other, owner.user_id)),
      transaction(api.db, (other) => deleteServiceAccount(other, owner.org_id, robot)),
    ];
    await untilLocksAreWaitedFor(api.db, started.length);
    await raise(tx, [raiseFor(owner.user_id), raiseFor(robot)]);
    return { deletions: started };
  });
  await Promise.all(deletions);
  assert.deepEqual([await kept(owner.user_id), await kept(robot)], [0, 0]);
});

const robotOf = ({ org_id }: Person) => makeServiceAccount(api.db, org_id, '*');

async function kept(recipient: Recipient): Promise<number> {
  const { rows } = await sql`select from notifications where recipient = ${recipient}`.execute(api.db);
  return rows.length;
}

test('a repeat is found without reading all unread notifications, whatever the planner assumes', async () => {
  const who = await api.person();
  const raises = (count: number) => Array.from({ length: count }, (_, n) => raiseFor(who.user_id, n));
  await transaction(api.db, (tx) => raise(tx, raises(1)));
  await sql`analyze notifications`.execute(api.db);
  const many = raises(2_000);
  await transaction(api.db, (tx) => raise(tx, many));
  const again = () => many.slice(0, 200).map((each) => ({ ...each, id: newId('ntf') }));
  const read = () =>
    transaction(api.db, async (tx) => {
      const before = await tuplesRead(tx);
      await raise(tx, [...raises(200), ...again()]);
      return (await tuplesRead(tx)) - before;
    });
  const read_small = await read();
  await sql`analyze notifications`.execute(api.db);
  for (const count of [read_small, await read()]) {
    assert.ok(count < 1_000, `${count} rows were read to find which 200 of 400 repeat something`);
  }
  assert.equal(await unreadOf(who), 2_401, 'repeats are counted where they are');
});

function raiseFor(recipient: Recipient, position = 0): Raise {
  return {
    ...{ id: newId('ntf'), recipient, org_id: null, kind: 'ssh_key.added', title: 't', body: 'b' },
    ...{ resource_type: 'ssh_key', resource_id: newId('key'), data: {}, count: 1, position },
    ...{ event_id: newId('evt'), raised_at: rfc3339(new Date()), mailable: false, mail_always: false },
  };
}

/** Of notifications, in this transaction. */
async function tuplesRead(tx: Tx): Promise<number> {
  const { rows } = await sql<{ tuples: number }>`
    select seq_tup_read + idx_tup_fetch as tuples from pg_stat_xact_user_tables where relname = 'notifications'`.execute(
    tx,
  );
  return rows[0]?.tuples ?? 0;
}
