/** An API key sees of its creator's notifications those about the account and about its own organisation. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile } from '../support/api.ts';
import { readEvents } from '../support/event-reader.ts';
import { assertError } from '../support/expect.ts';
import {
  type NotificationOut,
  notificationsOf,
  raiseNotificationsOfEvents,
} from '../support/notifications.ts';
import { makeKey, type Person, randomPublicKey } from '../support/people.ts';

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const { db } = api;
const PATH = '/v1/notifications';

/** A user who was told of the account, of organisation A and of B, and an API key of A. */
async function toldOfTwo() {
  const user = await api.person();
  const { org_id: b } = await api.person();
  await db.insertInto('memberships').values({ org_id: b, user_id: user.user_id, role: 'member' }).execute();
  const happens = async (path: string, json: unknown, org_id: string) => {
    const answer = await api.as(user).call('POST', path, { json, headers: { 'berth-org': org_id } });
    assert.equal(answer.status, 201, answer.text);
    await raiseNotificationsOfEvents(db);
    const [newest] = await notificationsOf(api.as(user));
    assert.ok(newest);
    return newest;
  };
  const made = { name: 'ci', scope: 'vm:read' };
  const of_account = () =>
    happens('/v1/me/ssh-keys', { name: 'a', public_key: randomPublicKey().line }, user.org_id);
  const of_a = () => happens('/v1/api-keys', made, user.org_id);
  const of_b = () => happens('/v1/api-keys', made, b);
  const told = { account: await of_account(), a: await of_a(), b: await of_b() };
  const { key } = await makeKey(db, user, '*');
  return { user, key, told, of_a, of_b };
}
const ids = (items: readonly NotificationOut[]) => items.map(({ id }) => id);
const unread = async (who: Person | string) =>
  (await api.as(who).get<{ count: number }>(`${PATH}/unread-count`)).body.count;

describe('an API key gets no notification of another organisation', () => {
  test('in the list and the count; a session gets all', async () => {
    const { user, key, told } = await toldOfTwo();
    assert.deepEqual(ids(await notificationsOf(api.as(key))), ids([told.a, told.account]));
    assert.deepEqual(ids(await notificationsOf(api.as(user))), ids([told.b, told.a, told.account]));
    assert.deepEqual([await unread(key), await unread(user)], [2, 3]);
  });

  test('and can mark none: 404, and read-all skips them', async () => {
    const { user, key, told } = await toldOfTwo();
    assertError(await api.as(key).patch(`${PATH}/${told.b.id}`, { read: true }), 'NOT_FOUND');
    assert.equal((await api.as(key).patch(`${PATH}/${told.account.id}`, { read: true })).status, 200);
    const all = await api.as(key).post<{ count: number }>(`${PATH}/read-all`);
    assert.equal(all.body.count, 1);
    assert.deepEqual(ids(await notificationsOf(api.as(user), '?status=unread')), ids([told.b]));
  });

  test('in its stream', async () => {
    const { key, of_a, of_b } = await toldOfTwo();
    const stream = await readEvents(`${api.origin}${PATH}/stream`, key, {});
    assert.deepEqual((await stream.next())?.data, { count: 2 });
    await of_b();
    const seen = await of_a();
    const [first] = await stream.nextOf('notification');
    assert.equal(first?.data.id, seen.id);
    assert.deepEqual((await stream.nextOf('unread'))[0]?.data, { count: 3 });
    await stream.cut();
  });
});
