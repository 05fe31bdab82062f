/** The egress policy of an instance, on which hosts its VM may run, and what hosts report of denied attempts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cordonHost } from '../../src/cli/server/hosts.ts';
import { DENIED_KEPT } from '../../src/control-plane/egress/denied-store.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut, newName } from '../support/api.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS } from '../support/scripted-agent.ts';

const api = await apiForFile();
const { agent, db } = api;
const owner = await api.person();
const client = api.as(owner);

type WithEgress = InstanceOut & { egress: { mode: string; allow: string[] } };
interface Denied {
  readonly data: readonly { at: string; name?: string; address?: string; port?: number; count: number }[];
}

const create = (egress: object) => client.post<WithEgress>('/v1/instances', { name: newName(), egress });
const denied = async (id: string) =>
  (await client.get<Denied>(`/v1/instances/${id}/vm/egress/denied`)).body.data;

describe('the policy', () => {
  test('is open by default, and kept in one form', async () => {
    const { body } = await client.post<WithEgress>('/v1/instances', { name: newName() });
    assert.deepEqual(body.egress, { mode: 'open', allow: [] });
    const made = await create({
      mode: 'allow',
      allow: ['Example.COM.', 'example.com', '203.0.113.9/24:443'],
    });
    assert.equal(made.status, 201, made.text);
    assert.deepEqual(made.body.egress, { mode: 'allow', allow: ['example.com', '203.0.113.0/24:443'] });
  });

  test('a change of the mode keeps the list, and the other way round', async () => {
    const { body } = await create({ mode: 'allow', allow: ['example.com'] });
    const path = `/v1/instances/${body.id}`;
    const deny = await client.patch<WithEgress>(path, { egress: { mode: 'deny' } });
    assert.deepEqual(deny.body.egress, { mode: 'deny', allow: ['example.com'] });
    const other = await client.patch<WithEgress>(path, { egress: { allow: ['*.example.org'] } });
    assert.deepEqual(other.body.egress, { mode: 'deny', allow: ['*.example.org'] });
  });

  test('400: a bad or private entry is named, and nothing changes', async () => {
    const { body } = await create({ mode: 'allow', allow: ['example.com'] });
    const path = `/v1/instances/${body.id}`;
    for (const bad of [
      '10.0.0.1',
      '169.254.169.254',
      '0.0.0.0/0',
      'http://example.com',
      '*',
      'localhost',
      '::1',
    ]) {
      const answer = await client.patch<{
        error: { code: string; message: string; details: { field: string }[] };
      }>(path, { name: newName(), egress: { mode: 'open', allow: ['example.org', bad] } });
      assert.equal(answer.status, 400, bad);
      assert.equal(answer.body.error.code, 'INVALID_REQUEST');
      assert.equal(answer.body.error.details[0]?.field, 'egress.allow.1');
      assert.ok(answer.body.error.message.includes(bad), answer.body.error.message);
    }
    const after = await client.get<WithEgress>(path);
    assert.deepEqual(
      [after.body.egress, after.body.name],
      [{ mode: 'allow', allow: ['example.com'] }, body.name],
    );
    const many = Array.from({ length: 101 }, (_, i) => `h${i}.example.com`);
    assert.equal((await client.patch(path, { egress: { allow: many } })).status, 400);
    assert.equal((await client.patch(path, { egress: { mode: 'closed' } })).status, 400);
    assert.equal((await client.patch(path, { egress: { mode: 'deny', names: [] } })).status, 400);
  });

  test('reaches the host with the assignment, and a change at once', async () => {
    const { body } = await create({ mode: 'allow', allow: ['example.com'] });
    await client.post(`/v1/instances/${body.id}/vm`);
    await agent.assigned(body.id);
    const egressOf = async () => {
      const { assignments } = await agent.client.poll({ seen: null }, AbortSignal.timeout(10_000));
      return assignments.find(({ instance_id }) => instance_id === body.id)?.egress;
    };
    assert.deepEqual(await egressOf(), { mode: 'allow', allow: ['example.com'] });
    await client.patch(`/v1/instances/${body.id}`, { egress: { mode: 'deny' } });
    assert.deepEqual(await egressOf(), { mode: 'deny', allow: ['example.com'] });
  });

  test('409: a VM on a host that cannot enforce it keeps its mode', async () => {
    const { body } = await create({ mode: 'open' });
    await client.post(`/v1/instances/${body.id}/vm`);
    await agent.assigned(body.id);
    const { facts } = await db
      .selectFrom('hosts')
      .select('facts')
      .where('id', '=', api.host_id)
      .executeTakeFirstOrThrow();
    const say = (more: object) =>
      db
        .updateTable('hosts')
        .set({ facts: JSON.stringify({ ...facts, ...more }) })
        .where('id', '=', api.host_id)
        .execute();
    await say({ enforces_egress: false });
    const refused = await client.patch(`/v1/instances/${body.id}`, { egress: { mode: 'deny' } });
    await say({ enforces_egress: true });
    assert.equal(refused.status, 409, refused.text);
    assert.equal((await client.patch(`/v1/instances/${body.id}`, { egress: { mode: 'deny' } })).status, 200);
  });
});

describe('denied attempts', () => {
  const at = () => new Date().toISOString();

  async function running(): Promise<InstanceId> {
    const { body } = await create({ mode: 'deny' });
    await client.post(`/v1/instances/${body.id}/vm`);
    await agent.assigned(body.id);
    return body.id;
  }

  test('are empty at first, merged by destination, newest first, and stay for a stopped VM', async () => {
    const id = await running();
    assert.deepEqual(await denied(id), []);
    const about = { instance_id: id, count: 1 };
    const old = new Date(Date.now() - 60_000).toISOString();
    await agent.client.reportDenied({
      denials: [
        { ...about, at: old, name: 'evil.example', address: null, port: null },
        { ...about, at: old, name: 'evil.example', address: '203.0.113.7', port: 443, count: 2 },
        { ...about, at: old, name: null, address: '10.0.0.1', port: null },
      ],
    });
    await agent.client.reportDenied({
      denials: [{ ...about, at: at(), name: 'evil.example', address: '203.0.113.8', port: 443 }],
    });
    const shown = (await denied(id)).map(({ at: _, ...rest }) => rest);
    assert.deepEqual(shown[0], { name: 'evil.example', address: '203.0.113.8', port: 443, count: 3 });
    assert.deepEqual(
      shown.slice(1).sort((a, b) => (a.name ?? '').localeCompare(b.name ?? '')),
      [
        { address: '10.0.0.1', count: 1 },
        { name: 'evil.example', count: 1 },
      ],
    );
  });

  test('an attempt without any destination is left out, and those beside it are recorded', async () => {
    const [first, second] = [await running(), await running()];
    const nowhere = { name: null, address: null, port: null, count: 1, at: at() };
    await agent.client.reportDenied({
      denials: [
        { instance_id: first, ...nowhere },
        { instance_id: second, ...nowhere, name: 'evil.example' },
      ],
    });
    assert.deepEqual(await denied(first), []);
    assert.equal((await denied(second)).length, 1);
  });

  test('the last 100 are kept, and a scan makes few events, one for each destination', async () => {
    const id = await running();
    const scan = (from: number) =>
      Array.from({ length: 150 }, (_, i) => ({
        ...{ instance_id: id, at: at(), name: null, port: 22, count: 1 },
        address: `203.0.113.${(from + i) % 250}`,
      }));
    for (const from of [0, 100, 0]) await agent.client.reportDenied({ denials: scan(from) });
    assert.equal((await denied(id)).length, DENIED_KEPT);
    const events = await db
      .selectFrom('events')
      .select('data')
      .where('instance_id', '=', id)
      .where('type', '=', 'egress.denied')
      .execute();
    assert.ok(events.length > 0 && events.length <= 10, `${events.length} events`);
    const told = events.map(({ data }) => (data as { denied: { address: string } }).denied.address);
    assert.equal(new Set(told).size, told.length);
  });
});

const hosts = await listenToRemoteHosts(api);
const { agent: far } = await hosts.join('far', { cpus: '64', memory: '4096' });

const { enforces_egress: _, ...OLDER } = FACTS;
const EGRESS = { mode: 'allow', allow: ['example.com', '203.0.113.0/24:443'] };
const restricted = () => api.instance(owner, { egress: EGRESS });
const start = ({ id }: InstanceOut) => client.post(`/v1/instances/${id}/vm`);

test('503 where no host enforces it: neither one with the user network, nor one of an older version', async () => {
  await api.agent.connect({ ...FACTS, enforces_egress: false });
  await far.connect(OLDER);
  const { status, text } = await start(await restricted());
  assert.equal(status, 503, text);
  assert.match(text, /No connected host can enforce the egress mode \\"allow\\"/);
  assert.equal((await start(await api.instance(owner))).status, 202, 'mode open runs anywhere');
});

test('it starts on the host that enforces it, and takes its policy along when it moves', async () => {
  await far.connect(FACTS);
  const instance = await restricted();
  assert.equal((await start(instance)).status, 202);
  assert.deepEqual((await far.assigned(instance.id)).egress, EGRESS);
  await far.ready(instance.id);
  assert.equal((await client.delete(`/v1/instances/${instance.id}/vm`)).status, 202);
  await far.assigned(instance.id, 'it is stopped', ({ desired }) => desired === 'stopped');
  await far.stopped(instance.id);
  await cordonHost(hosts.server, 'far');
  assert.equal((await start(instance)).status, 503, 'the other host does not enforce it yet');
  await api.agent.connect(FACTS);
  assert.equal((await start(instance)).status, 202);
  assert.deepEqual((await api.agent.assigned(instance.id)).egress, EGRESS);
});
