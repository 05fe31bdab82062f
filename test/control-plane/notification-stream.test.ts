/** GET /v1/notifications/stream, and what every stream does: resume, revocation, bounds, the server's end. */
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { describe, test } from 'node:test';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile, startApi } from '../support/api.ts';
import { readEvents } from '../support/event-reader.ts';
import { assertError } from '../support/expect.ts';
import {
  appendNotifyingEvent,
  notificationsOf,
  raiseNotificationsOfEvents,
} from '../support/notifications.ts';
import { makeKey, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const PATH = '/v1/notifications/stream';
const open = (who: Person | string, headers: Record<string, string> = {}) =>
  readEvents(api.origin + PATH, typeof who === 'string' ? who : who.session, headers);

async function raise(who: Person, count = 1, key?: string): Promise<void> {
  for (let n = 0; n < count; n++) await appendNotifyingEvent(api.db, who, key);
  await raiseNotificationsOfEvents(api.db);
}

describe('200', () => {
  test('the count at the start, then each notification when it is raised, as in the list', async () => {
    const who = await api.person();
    await raise(who);
    const stream = await open(who);
    const { headers } = stream.response;
    assert.equal(headers.get('content-type'), 'text/event-stream');
    assert.equal(headers.get('cache-control'), 'no-store');
    assert.equal(headers.get('x-accel-buffering'), 'no');
    assert.ok(headers.get('x-request-id'));
    assert.deepEqual(await stream.next(), { id: null, event: 'unread', data: { count: 1 } });
    await raise(who);
    const frame = await stream.next();
    assert.equal(frame?.event, 'notification');
    assert.match(frame.id ?? '', /^evt_/);
    const [newest] = await notificationsOf(api.as(who));
    assert.deepEqual(frame.data, newest);
    assert.deepEqual((await stream.next())?.data, { count: 2 });
    await stream.cut();
  });

  test('a repeat comes again with its count; reading elsewhere changes the count here', async () => {
    const who = await api.person();
    const key = newId('key');
    await raise(who, 1, key);
    const stream = await open(who);
    await stream.nextOf('unread');
    await raise(who, 1, key);
    const [frame] = await stream.nextOf('notification');
    assert.equal(frame?.data.count, 2);
    await api.as(who).post('/v1/notifications/read-all');
    assert.deepEqual((await stream.nextOf('unread'))[0]?.data, { count: 0 });
    await stream.cut();
  });

  test('cut and resumed: none is lost or repeated', async () => {
    const who = await api.person();
    const stream = await open(who);
    await stream.nextOf('unread');
    const raising = (async () => {
      for (let n = 0; n < 150; n++) await raise(who);
    })();
    const first = await stream.nextOf('notification', 30);
    await stream.cut();
    const last = first.at(-1)?.id ?? '';
    await raising;
    const rest = await open(who, { 'last-event-id': last });
    const more = await rest.nextOf('notification', 120);
    await rest.cut();
    const all = [...first, ...more].map(({ data }) => data.id);
    const listed = [...(await notificationsOf(api.as(who), '?limit=100')).map(({ id }) => id)];
    assert.equal(new Set(all).size, 150);
    assert.deepEqual(all.slice(-100).reverse(), listed);
  });

  test('a notification that is raised while the stream opens is not missed', async () => {
    const who = await api.person();
    const streams = await Promise.all(
      Array.from({ length: 10 }, async (_, n) => {
        const stream = await open(who);
        await raise(who, 1, `key_${n}`);
        return stream;
      }),
    );
    await raiseNotificationsOfEvents(api.db);
    const newest = (await notificationsOf(api.as(who)))[0]?.id;
    for (const stream of streams) {
      const ids: string[] = [];
      while (ids.at(-1) !== newest) ids.push((await stream.nextOf('notification'))[0]?.data.id);
      assert.equal(new Set(ids).size, ids.length);
      await stream.cut();
    }
  });

  test('an expired Last-Event-ID: the stream says so and continues from now', async () => {
    const who = await api.person();
    const stream = await open(who, { 'last-event-id': newId('evt') });
    assert.equal((await stream.next())?.event, 'reset');
    await stream.nextOf('unread');
    await raise(who);
    await stream.nextOf('notification');
    await stream.cut();
  });

  test('others’ notifications are not in it', async () => {
    const who = await api.person();
    const other = await api.person({ org_id: who.org_id, role: 'admin' });
    const stream = await open(who);
    await stream.nextOf('unread');
    await raise(other);
    await raise(who);
    const [frame] = await stream.nextOf('notification');
    assert.equal(frame?.data.id, (await notificationsOf(api.as(who)))[0]?.id);
    await stream.cut();
  });

  test('while nothing happens a comment keeps it open', async () => {
    const stream = await open(await api.person());
    const reading = stream.next().then(() => stream.next());
    await until('two heartbeats', () => stream.comments.length >= 2);
    await stream.cut();
    await reading.catch(() => undefined);
  });
});

describe('the end', () => {
  test('a revoked key ends its streams, and nothing is sent after that', async () => {
    const who = await api.person();
    const { id, key } = await makeKey(api.db, who, 'notifications:read');
    const stream = await open(key);
    await stream.nextOf('unread');
    assert.equal((await api.as(who).delete(`/v1/api-keys/${id}`)).status, 204);
    await raise(who);
    const rest = await stream.rest();
    assert.deepEqual(
      rest.map(({ event, data }) => [event, data.code]),
      [['end', 'UNAUTHENTICATED']],
    );
  });

  test('a logout ends them too, also while nothing happens', async () => {
    const who = await api.person();
    const stream = await open(who);
    await stream.nextOf('unread');
    assert.equal((await api.as(who).post('/v1/auth/logout')).status, 204);
    assert.equal((await stream.rest()).at(-1)?.data.code, 'UNAUTHENTICATED');
  });

  test('a role without the scope ends them too', async () => {
    const who = await api.person();
    const { key, id } = await makeKey(api.db, who, 'notifications:read');
    const stream = await open(key);
    await stream.nextOf('unread');
    await api.db.updateTable('api_keys').set({ scope: 'vm:read' }).where('id', '=', id).execute();
    assert.equal((await stream.rest()).at(-1)?.data.code, 'FORBIDDEN');
  });

  test('a closing server ends its streams at once', async () => {
    const other = await startApi();
    try {
      const who = await other.person();
      const stream = await readEvents(other.origin + PATH, who.session);
      await stream.nextOf('unread');
      const closing = other.app.close();
      assert.deepEqual(await stream.rest(), []);
      await closing;
    } finally {
      await other.close();
    }
  });

  test('a closing server also ends a stream whose reader reads nothing', async () => {
    const other = await startApi();
    try {
      const who = await other.person();
      const socket = connect(Number(new URL(other.origin).port), '127.0.0.1').on('error', () => undefined);
      socket.pause();
      socket.write(requestOf(who));
      for (let n = 0; n < 8; n++) {
        const rows = Array.from({ length: 1_000 }, (_, at) => row(who, n * 1_000 + at, 'x'.repeat(900)));
        await other.db.insertInto('notifications').values(rows).execute();
      }
      await appendNotifyingEvent(other.db, who);
      await raiseNotificationsOfEvents(other.db);
      await other.app.close();
      socket.destroy();
    } finally {
      await other.close();
    }
  });

  test('a reader that reads nothing delays nobody, and gets everything once it reads', async () => {
    const who = await api.person();
    const { hostname, port } = new URL(api.origin);
    const socket = connect(Number(port), hostname);
    socket.pause();
    socket.write(requestOf(who));
    const quick = await open(who);
    await quick.nextOf('unread');
    // More than the buffers of both sockets hold.
    const body = 'x'.repeat(900);
    const many = Array.from({ length: 8_000 }, (_, n) => row(who, n, body));
    for (let at = 0; at < many.length; at += 1_000) {
      await api.db
        .insertInto('notifications')
        .values(many.slice(at, at + 1_000))
        .execute();
    }
    assert.equal((await quick.nextOf('notification', many.length)).length, many.length);
    await quick.cut();
    const ids = new Set<string>();
    let text = '';
    socket.setEncoding('latin1');
    for await (const chunk of socket) {
      text += chunk;
      for (const [, id = ''] of text.matchAll(/"id":"(ntf_\w{26})"/g)) ids.add(id);
      text = text.slice(-40);
      if (ids.size === many.length) break;
    }
    socket.destroy();
  });
});

function requestOf({ session }: Person): string {
  return `GET ${PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${session}\r\n\r\n`;
}

/** Straight into the table, at positions after all others. */
function row(who: Person, n: number, body: string) {
  const now = new Date();
  return {
    id: newId('ntf'),
    recipient: who.user_id,
    kind: 'ssh_key.added',
    title: 'A key',
    body,
    resource_type: null,
    resource_id: null,
    data: '{}',
    count: 1,
    position: 1_000_000_000 + n,
    event_id: newId('evt'),
    created_at: now,
    raised_at: now,
    read_at: null,
  };
}

describe('400', () => {
  test('a malformed Last-Event-ID', async () => {
    const who = await api.person();
    for (const id of ['1', 'ntf_00000000000000000000000000', 'evt_x', 'x'.repeat(100)]) {
      assertError(await api.as(who).get(PATH, { headers: { 'last-event-id': id } }), 'INVALID_REQUEST');
    }
    assertError(await api.as(who).get(`${PATH}?type=x`), 'INVALID_REQUEST');
  });
});

describe('401', () => {
  test('without a credential, or with one in the query or a cookie', async () => {
    const { session } = await api.person();
    assertError(await api.client.get(PATH), 'UNAUTHENTICATED');
    assertError(await api.client.get(PATH, { headers: { cookie: `session=${session}` } }), 'UNAUTHENTICATED');
  });
});
