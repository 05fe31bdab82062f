/**
 * The limit of an organisation's open event streams, notification streams and consoles together. Apart from their other
 * tests, which reauthorise every few milliseconds.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { WebSocket } from 'ws';
import { QUOTA_DEFAULTS } from '../../src/lib/quotas.ts';
import { setQuota } from '../../src/orgs/quotas.ts';
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

test('an organisation has at most 100 in all, others have their own, and a reader that disconnects releases its slot', async () => {
  const ann = await api.person();
  const { key } = await makeKey(api.db, ann, 'instances:read org:read notifications:read');
  const streams: EventReader[] = [];
  for (let n = 0; n < 100; n++) {
    const path = n % 2 === 0 ? EVENTS : NOTIFICATIONS;
    streams.push(await readEvents(api.origin + path, n % 3 === 0 ? key : ann.session));
  }
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

test('consoles count with the streams, and release their slot when they close', async () => {
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
