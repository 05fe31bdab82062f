/** HTTP ports by the API: what is published, and under which hostname. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { InstanceId } from '../../src/shared/ids.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);

interface PortOut {
  readonly id: string;
  readonly instance_id: string;
  readonly port: number;
  readonly access: string;
  readonly hostname: string;
  readonly url: string;
  readonly hostnames: readonly unknown[];
  readonly requests_per_minute: number;
  readonly last_error: unknown;
  readonly created_at: string;
  readonly updated_at: string;
}

async function published(id: string, json: unknown = { port: 8080 }): Promise<PortOut> {
  const { status, body, text } = await client.post<PortOut>(`/v1/instances/${id}/ports`, json);
  assert.equal(status, 201, text);
  return body;
}
const pathOf = (port: PortOut) => `/v1/instances/${port.instance_id}/ports/${port.id}`;
const eventsOf = async (id: string) =>
  api.db
    .selectFrom('events')
    .select(['type', 'data'])
    .where('instance_id', '=', id as InstanceId)
    .where('type', 'like', 'port.%')
    .orderBy('serial')
    .execute();

describe('POST', () => {
  test('201: private by default, with hostname and URL below the domain', async () => {
    const { id } = await api.instance(owner, { name: 'web' });
    const port = await published(id);
    assert.match(port.id, /^port_[0-9a-z]{26}$/);
    assert.match(port.hostname, /^web-[0-9a-hjkmnp-tv-z]{8}\.apps\.test$/);
    assert.equal(port.url, `http://${port.hostname}:7480`);
    const { instance_id, access, hostnames, requests_per_minute, last_error } = port;
    assert.deepEqual(
      { instance_id, access, hostnames, requests_per_minute, last_error, port: port.port },
      {
        instance_id: id,
        access: 'private',
        hostnames: [],
        requests_per_minute: 0,
        last_error: null,
        port: 8080,
      },
    );
    const read = await client.get<PortOut>(pathOf(port));
    assert.deepEqual(read.body, port);
    assert.equal((await client.get<Page<PortOut>>(`/v1/instances/${id}/ports`)).body.data.length, 1);
  });
  test('the label fits 63 characters, and keeps no hyphen at the cut', async () => {
    const name = `${'a'.repeat(53)}-${'b'.repeat(9)}`;
    const { id } = await api.instance(owner, { name });
    const { hostname } = await published(id);
    const label = hostname.split('.')[0] ?? '';
    assert.match(label, /^a{53}-[0-9a-z]{8}$/);
  });
  test('the same guest port may be published twice, under two hostnames', async () => {
    const { id } = await api.instance(owner);
    const both = [await published(id), await published(id, { port: 8080, access: 'public' })];
    assert.equal(new Set(both.map((each) => each.hostname)).size, 2);
    const { data } = (await client.get<Page<PortOut>>(`/v1/instances/${id}/ports`)).body;
    assert.deepEqual(
      data.map((each) => each.id),
      both.map((each) => each.id).toReversed(),
    );
  });
  test('429 past 20 ports, naming the limit; a deleted one makes room', async () => {
    const { id } = await api.instance(owner);
    const ports = [];
    for (let i = 0; i < 20; i++) ports.push(await published(id, { port: 1 + i }));
    const path = `/v1/instances/${id}/ports`;
    assertError(await client.post(path, { port: 99 }), 'QUOTA_EXCEEDED', /20 HTTP ports/);
    await client.delete(pathOf(ports[0] as PortOut));
    await published(id, { port: 99 });
  });
  test('20 requests at the same time for the last place create one port', async () => {
    const { id } = await api.instance(owner);
    for (let i = 0; i < 19; i++) await published(id);
    const path = `/v1/instances/${id}/ports`;
    const answers = await Promise.all(Array.from({ length: 20 }, () => client.post(path, { port: 80 })));
    assert.equal(answers.filter(({ status }) => status === 201).length, 1);
    assert.equal(answers.filter(({ status }) => status === 429).length, 19);
  });
  test('a replayed Idempotency-Key returns the same port', async () => {
    const { id } = await api.instance(owner);
    const options = { headers: { 'idempotency-key': newName() } };
    const path = `/v1/instances/${id}/ports`;
    const first = await client.post<PortOut>(path, { port: 80 }, options);
    const again = await client.post<PortOut>(path, { port: 80 }, options);
    assert.deepEqual([again.status, again.body], [201, first.body]);
    assert.equal(again.headers['idempotency-replayed'], 'true');
    assertError(await client.post(path, { port: 81 }, options), 'IDEMPOTENCY_KEY_REUSED');
  });
  test('400: a bad port, access or field, each named', async () => {
    const { id } = await api.instance(owner);
    const path = `/v1/instances/${id}/ports`;
    for (const [json, field] of [
      [{}, 'port'],
      [{ port: 0 }, 'port'],
      [{ port: 65_536 }, 'port'],
      [{ port: 80.5 }, 'port'],
      [{ port: '80' }, 'port'],
      [{ port: 80, access: 'open' }, 'access'],
      [{ port: 80, hostname: 'x' }, 'hostname'],
    ] as const) {
      const error = assertError(await client.post(path, json), 'INVALID_REQUEST');
      assert.equal(error.details?.[0]?.field, field);
    }
  });
  test('409 on an instance that is being deleted, whose ports are no routes any more', async () => {
    const { id } = await api.instance(owner);
    await client.post(`/v1/instances/${id}/vm`);
    await api.agent.assigned(id);
    await published(id);
    await client.delete(`/v1/instances/${id}`);
    assertError(await client.post(`/v1/instances/${id}/ports`, { port: 80 }), 'CONFLICT', /deleted/);
    const { routes } = await api.ingress.httpRoutes({ seen: null }, AbortSignal.timeout(5_000));
    assert.ok(!routes.some((each) => each.instance_id === id));
  });
});

describe('a hostname', () => {
  test('stays when the instance is renamed', async () => {
    const { id } = await api.instance(owner);
    const port = await published(id);
    await client.call('PATCH', `/v1/instances/${id}`, { json: { name: newName() } });
    assert.equal((await client.get<PortOut>(pathOf(port))).body.hostname, port.hostname);
  });
  test('is never assigned again, also after port and instance are deleted', async () => {
    const { id } = await api.instance(owner);
    const port = await published(id);
    await client.delete(pathOf(port));
    await api.db.deleteFrom('instances').where('id', '=', id).execute();
    const label = port.hostname.split('.')[0] ?? '';
    const kept = await api.db.selectFrom('http_labels').selectAll().where('label', '=', label).execute();
    assert.deepEqual(kept, [{ label }]);
    await assert.rejects(api.db.insertInto('http_labels').values({ label }).execute(), /http_labels_pkey/);
  });
});

describe('PATCH', () => {
  test('changes the access, with If-Match', async () => {
    const { id } = await api.instance(owner);
    const port = await published(id);
    const { etag } = (await client.get(pathOf(port))).headers;
    const change = (access: string, tag: unknown) =>
      client.call<PortOut>('PATCH', pathOf(port), {
        json: { access },
        headers: { 'if-match': String(tag) },
      });
    const changed = await change('public', etag);
    assert.deepEqual([changed.status, changed.body.access], [200, 'public']);
    assert.notEqual(changed.headers['etag'], etag);
    assertError(await change('private', etag), 'PRECONDITION_FAILED');
    assertError(await client.call('PATCH', pathOf(port), { json: { port: 1 } }), 'INVALID_REQUEST');
    const types = (await eventsOf(id)).map((each) => each.type);
    assert.deepEqual(types, ['port.created', 'port.changed']);
  });
  test('an unchanged access is no event and keeps the ETag', async () => {
    const { id } = await api.instance(owner);
    const port = await published(id);
    const before = await client.get(pathOf(port));
    const same = await client.call<PortOut>('PATCH', pathOf(port), { json: { access: 'private' } });
    assert.equal(same.headers['etag'], before.headers['etag']);
    assert.equal((await eventsOf(id)).length, 1);
  });
});

test('DELETE: 204, then 404; the event has the port', async () => {
  const { id } = await api.instance(owner);
  const port = await published(id);
  assert.equal((await client.delete(pathOf(port))).status, 204);
  assertError(await client.get(pathOf(port)), 'NOT_FOUND');
  assertError(await client.delete(pathOf(port)), 'NOT_FOUND');
  const last = (await eventsOf(id)).at(-1);
  assert.equal(last?.type, 'port.deleted');
  assert.equal((last?.data as { port?: PortOut } | undefined)?.port?.hostname, port.hostname);
});

test('404: a port under another instance, or a malformed id, as for one that never existed', async () => {
  const { id } = await api.instance(owner);
  const other = await api.instance(owner);
  const port = await published(id);
  for (const path of [
    `/v1/instances/${other.id}/ports/${port.id}`,
    `/v1/instances/${id}/ports/${newId('port')}`,
    `/v1/instances/${id}/ports/8080`,
  ]) {
    assertError(await client.get(path), 'NOT_FOUND');
    assertError(await client.delete(path), 'NOT_FOUND');
    assertError(await client.call('PATCH', path, { json: { access: 'public' } }), 'NOT_FOUND');
  }
});

test('each change is in the audit log', async () => {
  const person = await api.person();
  const { id } = await api.instance(person);
  const { key } = await makeKey(api.db, person, 'vm:write');
  const path = `/v1/instances/${id}/ports`;
  const { body } = await api.as(key).post<PortOut>(path, { port: 80 });
  await api.as(key).call('PATCH', `${path}/${body.id}`, { json: { access: 'public' } });
  await api.as(key).delete(`${path}/${body.id}`);
  const rows = await api.db
    .selectFrom('audit_log')
    .select(['action', 'target'])
    .where('org_id', '=', person.org_id)
    .where('action', 'like', 'port.%')
    .orderBy('id')
    .execute();
  assert.deepEqual(
    rows,
    ['port.create', 'port.change', 'port.delete'].map((action) => ({ action, target: body.id })),
  );
});
