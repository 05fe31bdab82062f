/** How many consoles are open at once. Apart from the others, whose consoles are looked at every few milliseconds. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { WebSocket } from 'ws';
import { CONSOLES_PER_ORGANISATION } from '../../src/http/console-stream.ts';
import { apiForFile } from '../support/api.ts';
import type { Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();

/** Somebody's console, not dialled yet. */
async function consoleOf(who: Person) {
  const { id } = await instanceIn(api, who, 'running');
  const path = `/v1/instances/${id}/vm/console`;
  return async () => {
    const { body, text } = await api.as(who).post<{ ticket: string }>(`${path}/ticket`);
    assert.ok(body.ticket, text);
    return `${api.origin.replace('http', 'ws')}${path}/stream?ticket=${body.ticket}`;
  };
}

/** Answered as the agent answers it. */
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
  const { statusCode: status, headers } = response;
  return { status, retry_after: headers['retry-after'], code: JSON.parse(text).error.code };
}

test('429 beyond 50 of one organisation; others are let in, and who goes makes room', async () => {
  const mine = await consoleOf(await api.person());
  const theirs = await consoleOf(await api.person());
  const consoles = [];
  while (consoles.length < CONSOLES_PER_ORGANISATION) consoles.push(await open(await mine()));
  const refusal = { status: 429, retry_after: '15', code: 'RATE_LIMITED' };
  assert.deepEqual(await refusalOf(await mine()), refusal);
  consoles.push(await open(await theirs()));
  assert.deepEqual(await refusalOf(await mine()), refusal);
  consoles[0]?.close();
  const asked = api.agent.nextCall('console').then(({ id }) => api.agent.client.openConsole(id));
  await until('there is room', async () =>
    Promise.race([refusalOf(await mine()).then(() => false), asked.then(() => true)]),
  );
  for (const each of consoles) each.terminate();
});
