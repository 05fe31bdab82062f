/** Counts stay exact, and nothing unseen is marked as read, whatever happens at the same time. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { deleteServiceAccount } from '../../src/control-plane/api-keys/store.ts';
import { type Tx, transaction } from '../../src/control-plane/db/pool.ts';
import { deleteUser } from '../../src/control-plane/identity/store.ts';
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
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';
import {
  appendNotifyingEvent,
  notificationsOf,
  raiseNotificationsOfEvents,
} from '../support/notifications.ts';
import { makeNotification, makeServiceAccount, type Person } from '../support/people.ts';

const api = await apiForFile();
const PATH = '/v1/notifications';
const unread = async (who: Person) =>
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
  assert.equal(await unread(who), 60 - 30 + 10);
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
  const left = await unread(who);
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
  assert.equal(await unread(who), 2_401, 'repeats are counted where they are');
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
