/**
 * The limit of an organisation's open event streams, notification streams and consoles together. Apart from their other
 * tests, which reauthorise every few milliseconds.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { sql } from 'kysely';
import { WebSocket } from 'ws';
import { createApp } from '../../src/control-plane/app.ts';
import { setQuota } from '../../src/control-plane/organisations/quotas.ts';
import { QUOTA_DEFAULTS } from '../../src/shared/quotas.ts';
import { apiForFile } from '../support/api.ts';
import { type EventReader, readEvents } from '../support/event-reader.ts';
import { assertError } from '../support/expect.ts';
import { makeKey, type Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile({ context: { quotas: QUOTA_DEFAULTS } });
const EVENTS = '/v1/events/stream';
const NOTIFICATIONS = '/v1/notifications/stream';

/** A console that is not connected yet. */
async function consoleOf(who: Person) {
  const { id } = await instanceIn(api, who, 'running');
  const path = `/v1/instances/${id}/vm/console`;
  return async () => {
    const { body, text } = await api.as(who).post<{ ticket: string }>(`${path}/ticket`);
    assert.ok(body.ticket, text);
    return `${api.origin.replace('http', 'ws')}${path}/stream?ticket=${body.ticket}`;
  };
}

/** Answers as the agent does. */
async function open(url: string): Promise<WebSocket> {
  const socket = new WebSocket(url);
  const { id } = await api.agent.nextCall('console');
  (await api.agent.client.openConsole(id)).on('error', () => undefined);
  await once(socket, 'open');
  return socket;
}

async function refusalOf(url: string) {
  const socket = new WebSocket(url);
  socket.on('error', () => undefined);
  const [, response] = await once(socket, 'unexpected-response');
  const text = await response.reduce((all: string, chunk: Buffer) => all + chunk, '');
  return { status: response.statusCode, code: JSON.parse(text).error.code };
}

const usedBy = async (who: Person) => {
  const { body } = await api
    .as(who)
    .get<{ streams: { limit: number; used: number } }>(`/v1/orgs/${who.org_id}/quota`);
  return body.streams;
};

/** Waits for a renewal that began after the last stream opened: one that began before it may say the count before. */
async function renewed({ org_id }: Person): Promise<void> {
  const seenAt = async () => {
    const { rows } = await sql<{ at: string }>`
      select max(seen_at)::text as at from open_streams where org_id = ${org_id}`.execute(api.db);
    return rows[0]?.at;
  };
  for (const which of ['one that may have begun before', 'the next one']) {
    const before = await seenAt();
    await until(which, async () => (await seenAt()) !== before);
  }
}

test('an organisation has at most 100 in all, others have their own, and a reader that disconnects makes room', async () => {
  const ann = await api.person();
  const { key } = await makeKey(api.db, ann, 'instances:read org:read notifications:read');
  const streams: EventReader[] = [];
  for (let n = 0; n < 100; n++) {
    const path = n % 2 === 0 ? EVENTS : NOTIFICATIONS;
    streams.push(await readEvents(api.origin + path, n % 3 === 0 ? key : ann.session));
  }
  await renewed(ann);
  assert.deepEqual(await usedBy(ann), { limit: 100, source: 'default', used: 100 });
  const colleague = await api.person({ org_id: ann.org_id });
  for (const path of [EVENTS, NOTIFICATIONS]) {
    const { details } = assertError(await api.as(colleague).get(path), 'QUOTA_EXCEEDED', /quota of streams/);
    assert.deepEqual(details, [{ field: 'streams', issue: 'quota 100, used 100, wanted 1' }]);
  }
  const stranger = await readEvents(api.origin + EVENTS, (await api.person()).session);
  await stranger.cut();
  await streams[0]?.cut();
  const again = await until('there is room', () =>
    readEvents(api.origin + EVENTS, colleague.session).catch(() => undefined),
  );
  await again.cut();
  for (const stream of streams) await stream.cut();
});

test('consoles count with the streams, and make room when they close', async () => {
  const who = await api.person();
  await setQuota(api.db, who.org_id, { streams: 3 });
  const mine = await consoleOf(who);
  const theirs = await consoleOf(await api.person());
  const stream = await readEvents(api.origin + EVENTS, who.session);
  const consoles = [await open(await mine()), await open(await mine())];
  const refusal = { status: 429, code: 'QUOTA_EXCEEDED' };
  assert.deepEqual(await refusalOf(await mine()), refusal);
  assertError(await api.as(who).get(EVENTS), 'QUOTA_EXCEEDED');
  consoles.push(await open(await theirs()));
  assert.deepEqual(await refusalOf(await mine()), refusal);
  await stream.cut();
  const asked = api.agent.nextCall('console').then(({ id }) => api.agent.client.openConsole(id));
  await until('there is room', async () =>
    Promise.race([refusalOf(await mine()).then(() => false), asked.then(() => true)]),
  );
  for (const each of consoles) each.terminate();
});

test('those at all control planes count together, those of one that has ended do not', async (t) => {
  const who = await api.person();
  await setQuota(api.db, who.org_id, { streams: 2 });
  const other = await createApp(api.context);
  t.after(() => other.close());
  const there = await other.listen({ host: '127.0.0.1', port: 0 });
  const [here, second] = [
    await readEvents(api.origin + EVENTS, who.session),
    await readEvents(there + EVENTS, who.session),
  ];
  for (const origin of [api.origin, there])
    await assert.rejects(readEvents(origin + EVENTS, who.session), /QUOTA_EXCEEDED/);
  assert.equal((await usedBy(who)).used, 2);
  await here.cut();
  await until('there is room', async () => (await usedBy(who)).used === 1);
  const third = await readEvents(there + EVENTS, who.session);
  assert.equal((await usedBy(who)).used, 2);
  for (const each of [second, third]) await each.cut();
  await until('all are closed', async () => (await usedBy(who)).used === 0);
  const dead = (seconds: number) =>
    sql`insert into open_streams values (${who.org_id}, ${`dead ${seconds}`}, 2, now() - make_interval(secs => ${seconds}))`;
  await dead(30).execute(api.db);
  assert.equal((await usedBy(who)).used, 0);
  await dead(0).execute(api.db);
  assert.equal((await usedBy(who)).used, 2);
});

test('who lost streams with another control plane waits until these count no longer, instead of being refused', async () => {
  const who = await api.person();
  await setQuota(api.db, who.org_id, { streams: 1 });
  await sql`insert into open_streams values (${who.org_id}, 'killed', 1, now() - interval '4 seconds')`.execute(
    api.db,
  );
  const stream = await readEvents(api.origin + EVENTS, who.session);
  assert.equal((await usedBy(who)).used, 1);
  assertError(await api.as(who).get(EVENTS), 'QUOTA_EXCEEDED');
  await stream.cut();
});

test('a database that forgot them, or was away when one closed, is told the number again', async (t) => {
  const warn = t.mock.method(api.context.log, 'warn');
  const who = await api.person();
  const open = () => readEvents(api.origin + EVENTS, who.session);
  const streams = [await open(), await open()];
  await sql`truncate open_streams`.execute(api.db);
  streams.push(await open());
  await until('it knows all', async () => (await usedBy(who)).used === 3);
  await sql`alter table open_streams rename to away`.execute(api.db);
  await streams[0]?.cut();
  await until('the end could not be told', () => warn.mock.callCount() > 0);
  await sql`alter table away rename to open_streams`.execute(api.db);
  await until('it knows', async () => (await usedBy(who)).used === 2);
  for (const stream of streams) await stream.cut();
  await until('all are closed', async () => (await usedBy(who)).used === 0);
});
