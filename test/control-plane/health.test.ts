/** Health, readiness, images, and the answers while the database is unavailable. */
import assert from 'node:assert/strict';
import { after, describe, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { toAppError } from '../../src/control-plane/http/errors.ts';
import { apiForFile } from '../support/api.ts';
import { DatabaseProxy } from '../support/database-proxy.ts';
import { assertError } from '../support/expect.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

let proxy: DatabaseProxy | undefined;
const api = await apiForFile({
  database_url: async (database) => {
    proxy = await DatabaseProxy.open(database);
    return proxy.url;
  },
});
after(() => proxy?.close());
const owner = await api.person();

interface Ready {
  readonly ready: boolean;
  readonly database: { ok: boolean; problem?: string };
  readonly object_store: { ok: boolean; problem?: string };
  readonly host: { ok: boolean; problem?: string };
}
const readyz = () => api.client.get<Ready>('/readyz');

describe('200', () => {
  test('/healthz while the process is alive', async () => {
    const { status, body } = await api.client.get('/healthz');
    assert.deepEqual([status, body], [200, { alive: true }]);
  });
  test('/readyz while database, object store and a host are usable', async () => {
    const { status, body } = await readyz();
    assert.deepEqual(
      [status, body],
      [
        200,
        {
          ready: true,
          database: { ok: true },
          object_store: { ok: true },
          host: { ok: true, accelerators: [FACTS.accelerator] },
        },
      ],
    );
  });
  test('GET /v1/images shows what the connected hosts have', async (t) => {
    const versions = ['b', 'a'].map((letter) => letter.repeat(64));
    t.after(() => api.agent.connect());
    await api.agent.connect({
      ...FACTS,
      images: [
        ...versions.map((version) => ({ id: 'debian-12', version })),
        { id: 'alpine', version: '1'.repeat(64) },
      ],
    });
    const answer = await api.as(owner).get('/v1/images');
    assert.deepEqual(
      [answer.status, answer.body],
      [
        200,
        {
          data: [
            { id: 'alpine', current: null, size_bytes: null, versions: ['1'.repeat(64)] },
            { id: 'debian-12', current: null, size_bytes: null, versions: versions.toSorted() },
          ],
          next_cursor: null,
        },
      ],
    );
    const made = await api.as(owner).post('/v1/instances', { name: 'small', image: 'alpine' });
    assert.equal(made.status, 201);
    assertError(await api.as(owner).get('/v1/images?all=1'), 'INVALID_REQUEST', /all/);
  });
});

describe('503', () => {
  test('/readyz while no host has reported recently', async (t) => {
    await api.agent.silence();
    t.after(() => api.agent.connect());
    await api.db
      .updateTable('hosts')
      .set({ last_seen_at: new Date(Date.now() - 21_000) })
      .execute();
    const { status, body } = await readyz();
    assert.deepEqual([status, body.ready, body.database.ok, body.host.ok], [503, false, true, false]);
    const for_balancers = await api.client.get<Ready>('/readyz?only=database');
    assert.deepEqual([for_balancers.status, for_balancers.body.host.ok], [200, false]);
  });

  test("/readyz while no host's object store works, and why", async (t) => {
    t.after(() => api.agent.connect());
    await api.agent.connect({ ...FACTS, object_store_problem: 'the disk is full' });
    const { status, body } = await readyz();
    assert.deepEqual([status, body.host.ok], [503, true]);
    assert.deepEqual(body.object_store, { ok: false, problem: 'the disk is full' });
  });

  test('every call while the database is unavailable, and no call afterwards', async (t) => {
    assert(proxy);
    const { cut, restore } = { cut: () => proxy?.cut(), restore: () => proxy?.restore() };
    const { id } = await instanceIn(api, owner, 'running');
    await cut();
    let is_restored = false;
    t.after(() => (is_restored ? undefined : restore()));
    const { status, body } = await readyz();
    assert.deepEqual([status, body.database.ok], [503, false]);
    assert.equal((await api.client.get('/readyz?only=database')).status, 503);
    assert.equal((await api.client.get('/healthz')).status, 200, 'still alive');
    for (const [method, path] of [
      ['GET', '/v1/instances'],
      ['GET', `/v1/instances/${id}/vm`],
      ['POST', `/v1/instances/${id}/vm`],
      ['POST', '/v1/api-keys'],
    ] as const) {
      const answer = await api.as(owner).call(method, path);
      assertError(answer, 'UNAVAILABLE', /database is unavailable/);
      assert.equal(answer.headers['retry-after'], '2');
    }
    const body_of_login = { email: owner.email, password: 'whatever' };
    assertError(await api.client.post('/v1/auth/login', body_of_login), 'UNAVAILABLE');
    await restore();
    is_restored = true;
    await until('it is ready again', async () => (await readyz()).status === 200);
    const waiting = api
      .as(owner)
      .get<{ state: string }>(`/v1/instances/${id}/vm?wait=stopped&timeout_seconds=60`);
    await api.as(owner).delete(`/v1/instances/${id}/vm`);
    await api.agent.stopped(id);
    assert.equal((await waiting).body.state, 'stopped', 'notifications arrive again');
  });

  test('a connection that breaks during a call fails that call, and the process goes on', async (t) => {
    assert(proxy);
    const open_proxy = proxy;
    const uncaught: unknown[] = [];
    const note = (error: unknown) => void uncaught.push(error);
    process.on('uncaughtExceptionMonitor', note);
    t.after(() => process.off('uncaughtExceptionMonitor', note));
    const work = api.context.db.transaction().execute(async (tx) => {
      await sql`select 1`.execute(tx);
      await open_proxy.cut();
      // Between two statements, where only the connection itself can receive the error.
      await new Promise((resolve) => setImmediate(resolve));
      await sql`select 1`.execute(tx);
    });
    await assert.rejects(work);
    await open_proxy.restore();
    await until('it is ready again', async () => (await readyz()).status === 200);
    assert.deepEqual(uncaught, []);
  });

  test('a wait that a database outage interrupts is answered, and works again afterwards', async () => {
    assert(proxy);
    const { id } = await instanceIn(api, owner, 'starting');
    const waiting = api
      .as(owner)
      .get<{ state: string }>(`/v1/instances/${id}/vm?wait=running&timeout_seconds=30`);
    await proxy.cut();
    await proxy.restore();
    await until('it is ready again', async () => (await readyz()).status === 200);
    await api.agent.ready(id);
    const answer = await waiting;
    if (answer.status === 200) assert.equal(answer.body.state, 'running');
    else assertError(answer, 'UNAVAILABLE');
  });

  test('/readyz reports a full database disk for half a minute', async (t: TestContext) => {
    const full = sql`do $$ begin raise exception using errcode = 'disk_full'; end $$`.execute(api.context.db);
    const { code, message } = toAppError(await full.catch((error: unknown) => error));
    assert.deepEqual([code, /no room left/.test(message)], ['UNAVAILABLE', true]);
    const { status, body } = await readyz();
    assert.deepEqual([status, body.ready, body.host.ok, body.object_store.ok], [503, false, true, true]);
    assert.deepEqual(body.database, { ok: false, problem: 'no room left on its disk' });
    const now = performance.now.bind(performance);
    t.mock.method(performance, 'now', () => now() + 30_001);
    assert.equal((await readyz()).status, 200);
  });
});
