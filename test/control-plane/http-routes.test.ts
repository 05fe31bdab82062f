/** The routes of HTTP ports that the ingress gets, and what it reports. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { RequestMetrics } from '../../src/control-plane/monitoring/metrics.ts';
import { listHttpRoutes } from '../../src/control-plane/ports/store.ts';
import type { HttpRoute } from '../../src/protocol/ingress-types.ts';
import { type HttpPortId, newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { makePort } from '../support/ports.ts';
import { instanceIn } from '../support/states.ts';
import { awayFromTurnOf } from '../support/waiting.ts';

const metrics = new RequestMetrics();
const api = await apiForFile({ context: { metrics } });
const owner = await api.person();
const client = api.as(owner);
const { ingress } = api;

async function routes(seen: string | null = null) {
  return ingress.httpRoutes({ seen, at_once: seen === null }, AbortSignal.timeout(20_000));
}
async function routeOf(id: HttpPortId): Promise<HttpRoute | undefined> {
  return (await routes()).routes.find((each) => each.port_id === id);
}

describe('a route', () => {
  test('says where the VM runs, or that a request may start it', async () => {
    const expected = {
      running: 'local',
      // Requests wait until the guest is back.
      restarting: null,
      ...{ starting: null, stopped: null, suspended: null, stopping: null, failed: null, suspending: null },
    } as const;
    for (const [state, target] of Object.entries(expected)) {
      const { id } = await instanceIn(api, owner, state as keyof typeof expected);
      await client.call('PATCH', `/v1/instances/${id}`, { json: { wake_on_connect: true } });
      const route = await routeOf(await makePort(api.db, id));
      assert.equal(route?.target, target, state);
      assert.equal(route?.wake, state !== 'failed', state);
    }
  });
  test('is reached through a tunnel from every other machine', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const port = await makePort(api.db, id);
    const found = await listHttpRoutes(api.db, api.context.http, null);
    assert.equal(found.find((each) => each.port_id === port)?.target, 'tunnel');
  });
});

test('a poll is answered at once when a port is made, changed or removed', async () => {
  const { id } = await api.instance(owner);
  const path = `/v1/instances/${id}/ports`;
  let { etag } = await routes();
  const next = async () => {
    const answer = await routes(etag);
    etag = answer.etag;
    return answer.routes.filter((each) => each.instance_id === id);
  };
  const began_ms = performance.now();
  let waiting = next();
  const { body } = await client.post<{ id: string; hostname: string }>(path, { port: 80 });
  const [made] = await waiting;
  assert.deepEqual([made?.hostnames, made?.port, made?.access], [[body.hostname], 80, 'private']);
  waiting = next();
  await client.call('PATCH', `${path}/${body.id}`, { json: { access: 'public' } });
  assert.equal((await waiting)[0]?.access, 'public');
  waiting = next();
  await client.delete(`${path}/${body.id}`);
  assert.deepEqual(await waiting, []);
  assert.ok(performance.now() - began_ms < 10_000);
});

describe('a report', () => {
  const use = (port_id: HttpPortId, requests: number, last_error: object | null = null) => ({
    port_id,
    requests,
    sent_bytes: 10 * requests,
    received_bytes: requests,
    last_error: last_error as null,
  });
  const report = (...ports: ReturnType<typeof use>[]) =>
    ingress.reportHttp({ ports, responses: [0, 3, 0, 1, 2] }, AbortSignal.timeout(5_000));
  async function shown(instance_id: string, id: string) {
    type Shown = { requests_per_minute: number; last_error: unknown };
    return (await client.get<Shown>(`/v1/instances/${instance_id}/ports/${id}`)).body;
  }

  test('shows as requests a minute and as the last error, which a report without one keeps', async () => {
    const { id } = await api.instance(owner);
    const port = await makePort(api.db, id);
    const error = { at: '2026-11-25T09:12:00.000Z', code: 'BAD_GATEWAY', message: 'Nothing listens.' };
    await report(use(port, 7, error));
    await report(use(port, 5));
    const { requests_per_minute, last_error } = await shown(id, port);
    assert.deepEqual([requests_per_minute, last_error], [12, error]);
    const total = await api.db
      .selectFrom('http_port_use')
      .select(['sent_bytes', 'received_bytes'])
      .where('port_id', '=', port)
      .executeTakeFirst();
    assert.deepEqual(total, { sent_bytes: 120, received_bytes: 12 });
  });
  test('fades within a minute, and is 0 after two', async () => {
    const { id } = await api.instance(owner);
    const port = await makePort(api.db, id);
    await awayFromTurnOf(60_000, { margin_ms: 5_000 });
    await report(use(port, 60));
    const back = (minutes: number) =>
      api.db
        .updateTable('http_port_use')
        .set({ minute: sql`date_trunc('minute', now()) - make_interval(mins => ${minutes})` })
        .where('port_id', '=', port)
        .execute();
    await back(1);
    assert.ok((await shown(id, port)).requests_per_minute <= 60);
    await report(use(port, 1));
    const row = await api.db
      .selectFrom('http_port_use')
      .select(['requests', 'previous_requests'])
      .where('port_id', '=', port)
      .executeTakeFirst();
    assert.deepEqual(row, { requests: 1, previous_requests: 60 });
    await back(2);
    assert.equal((await shown(id, port)).requests_per_minute, 0);
  });
  test('leaves out ports that are gone', async () => {
    await report(use(newId('port'), 1));
  });
  test('counts in the metrics, by the class of the status and by direction', async () => {
    const text = await metrics.registry.metrics();
    const counted = /berth_http_port_responses_total\{class="5xx"\} ([0-9]+)/.exec(text)?.[1];
    assert.ok(Number(counted) >= 2, text);
    assert.match(text, /berth_http_port_bytes_total\{direction="sent"\} [1-9]/);
  });
});
