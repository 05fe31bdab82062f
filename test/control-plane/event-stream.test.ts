/** GET /v1/events/stream. Tests of all streams are in notification-stream.test.ts. */
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { append } from '../../src/control-plane/events/append.ts';
import { QUOTA_DEFAULTS } from '../../src/shared/quotas.ts';
import { apiForFile, startApi } from '../support/api.ts';
import { readEvents } from '../support/event-reader.ts';
import { assertError } from '../support/expect.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { makeKey, type Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile({ context: { heartbeat_ms: 50 } });
const { db, agent } = api;
const PATH = '/v1/events/stream';
const STREAMS = 20;
const open = (who: Person | string, query = '', headers: Record<string, string> = {}) =>
  readEvents(`${api.origin}${PATH}${query}`, typeof who === 'string' ? who : who.session, headers);

const ping = (who: Person, n = 0) =>
  append(db, { org_id: who.org_id, type: 'webhook.ping', data: { n }, actor: 'system' });

describe('200', () => {
  test('each event arrives as in the list, under its type and id', async () => {
    const who = await api.person();
    const stream = await open(who);
    const { id } = await instanceIn(api, who, 'running');
    await agent.failed(id);
    await raiseNotificationsOfEvents(db);
    const frames = [await stream.next(), await stream.next(), await stream.next()];
    const { body } = await api.as(who).get<{ data: { id: string; type: string }[] }>('/v1/events');
    assert.deepEqual(
      frames.map((frame) => frame?.data),
      body.data.toReversed(),
    );
    assert.deepEqual(
      frames.map((frame) => [frame?.id, frame?.event]),
      body.data.toReversed().map((event) => [event.id, event.type]),
    );
    await stream.cut();
  });

  test('a reader whose connection breaks repeatedly gets every event once, in order', async () => {
    const who = await api.person();
    const seen: number[] = [];
    let last: string | undefined;
    let stream = await open(who);
    const happening = (async () => {
      for (let n = 0; n < 200; n++) {
        // Concurrent transactions, and concurrent dispatchers.
        await Promise.all([ping(who, n), n % 3 === 0 ? raiseNotificationsOfEvents(db) : undefined]);
      }
      await raiseNotificationsOfEvents(db);
    })();
    while (seen.length < 200) {
      for (const frame of await stream.nextOf('webhook.ping', Math.min(23, 200 - seen.length))) {
        seen.push(frame.data.data.n);
        last = frame.id ?? last;
      }
      await stream.cut();
      stream = await open(who, '', { 'last-event-id': last ?? '' });
    }
    await happening;
    await stream.cut();
    assert.deepEqual(
      seen,
      Array.from({ length: 200 }, (_, n) => n),
    );
  });

  test('an event that commits late reaches every reader, and delays no other event', async () => {
    const who = await api.person();
    const stream = await open(who);
    const held = Promise.withResolvers<void>();
    const written = Promise.withResolvers<void>();
    const slow = db.transaction().execute(async (tx) => {
      await append(tx, { org_id: who.org_id, type: 'webhook.ping', data: { n: 1 }, actor: 'system' });
      written.resolve();
      await held.promise;
    });
    await written.promise;
    const later = await ping(who, 2);
    const early = await open(who, '', { 'last-event-id': later });
    assert.equal((await early.next())?.event, 'reset', 'it has no position yet');
    await raiseNotificationsOfEvents(db);
    assert.equal((await stream.next())?.data.data.n, 2);
    const resumed = await open(who, '', { 'last-event-id': later });
    held.resolve();
    await slow;
    await raiseNotificationsOfEvents(db);
    for (const each of [stream, resumed]) assert.equal((await each.next())?.data.data.n, 1);
    const frames = await early.nextOf('webhook.ping', 2);
    assert.deepEqual(
      frames.map((frame) => frame.data.data.n),
      [2, 1],
    );
    for (const each of [stream, early, resumed]) await each.cut();
  });

  test('a filter applies to the stream and to its resumption', async () => {
    const who = await api.person();
    const stream = await open(who, '?type=webhook.disabled');
    await ping(who, 1);
    await append(db, { org_id: who.org_id, type: 'webhook.disabled', data: {}, actor: 'system' });
    await raiseNotificationsOfEvents(db);
    const frame = await stream.next();
    assert.equal(frame?.event, 'webhook.disabled');
    await stream.cut();
    await ping(who, 2);
    await raiseNotificationsOfEvents(db);
    const rest = await open(who, '?type=webhook.ping', { 'last-event-id': frame.id ?? '' });
    assert.equal((await rest.next())?.data.data.n, 2);
    await rest.cut();
  });

  test('the scopes apply as in the list', async () => {
    const who = await api.person();
    const { key } = await makeKey(db, who, 'instances:read');
    const stream = await open(key);
    await ping(who);
    const { id } = await instanceIn(api, who, 'running');
    await raiseNotificationsOfEvents(db);
    assert.equal((await stream.next())?.data.data.instance.id, id);
    await stream.cut();
  });

  test('events of another organisation are not in it', async () => {
    const [who, other] = [await api.person(), await api.person()];
    const stream = await open(who);
    await ping(other, 1);
    await ping(who, 2);
    await raiseNotificationsOfEvents(db);
    assert.equal((await stream.next())?.data.data.n, 2);
    await stream.cut();
  });

  test('a reader that has left the organisation does not continue in another', async () => {
    const owner = await api.person();
    const guest = await api.person({ org_id: owner.org_id, role: 'member' });
    const stream = await open(guest);
    const path = `/v1/orgs/${owner.org_id}/members/${guest.user_id}`;
    assert.equal((await api.as(owner).delete(path)).status, 204);
    await ping(owner);
    await raiseNotificationsOfEvents(db);
    const rest = await stream.rest();
    assert.deepEqual(
      rest.map(({ event, data }) => [event, data.code]),
      [['end', 'FORBIDDEN']],
    );
  });
});

describe('the end', () => {
  test('a reader that disconnects before its stream begins keeps no slot', async (t) => {
    // Without heartbeats, which would detect it.
    const quiet = await startApi({ context: { quotas: { ...QUOTA_DEFAULTS, streams: STREAMS } } });
    t.after(() => quiet.close());
    const { server } = quiet.app;
    let asked = 0;
    server.on('request', () => {
      asked += 1;
    });
    const who = await quiet.person();
    const { hostname, port } = new URL(quiet.origin);
    const request = `GET ${PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${who.session}\r\n\r\n`;
    await quiet.database.db.transaction().execute(async (tx) => {
      await sql`LOCK TABLE event_head`.execute(tx);
      const sockets = Array.from({ length: STREAMS }, () =>
        connect(Number(port), hostname).on('error', () => undefined),
      );
      for (const socket of sockets) socket.write(request);
      await until('all to be asked for', () => asked === STREAMS);
      for (const socket of sockets) socket.destroy();
      await until('their connections to end', async () => {
        const { promise, resolve } = Promise.withResolvers<number>();
        server.getConnections((_, count) => resolve(count));
        return (await promise) === 0;
      });
    });
    // After those: slots are taken in the order of the reads.
    const streams = await Promise.all(
      Array.from({ length: STREAMS }, () => readEvents(quiet.origin + PATH, who.session)),
    );
    for (const stream of streams) await stream.cut();
  });
});

describe('400', () => {
  test('a malformed filter or Last-Event-ID', async () => {
    const who = await api.person();
    for (const query of ['type=vm', 'resource=x', 'limit=5', 'cursor=x']) {
      assertError(await api.as(who).get(`${PATH}?${query}`), 'INVALID_REQUEST');
    }
    const headers = { 'last-event-id': '12' };
    assertError(await api.as(who).get(PATH, { headers }), 'INVALID_REQUEST');
  });
});

describe('401', () => {
  test('without a credential', async () => {
    assertError(await api.client.get(PATH), 'UNAUTHENTICATED');
  });
});
