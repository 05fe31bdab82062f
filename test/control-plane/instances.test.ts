/** Instances: create, read, change. Other files test deletion and lists. */
import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { describe, test } from 'node:test';
import { setQuota } from '../../src/control-plane/organisations/quotas.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut, newName, startApi } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { HOST_KEY } from '../support/scripted-agent.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const INSTANCES = '/v1/instances';

function create(body: unknown) {
  return client.post<InstanceOut>(INSTANCES, body);
}

async function portsOf(ids: readonly InstanceOut['id'][]): Promise<number[]> {
  const rows = await api.db
    .selectFrom('instances')
    .select('ssh_port')
    .where('id', 'in', [...ids])
    .execute();
  return rows.map((row) => row.ssh_port);
}

describe('201', () => {
  test('a name is enough: other fields have their documented defaults', async () => {
    const name = newName();
    const answer = await create({ name });
    assert.equal(answer.status, 201, answer.text);
    const { id, created_at, updated_at, ...rest } = answer.body;
    assert.match(id, /^inst_/);
    assert.match(created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    assert.equal(updated_at, created_at);
    const disk = {
      size_bytes: 8 * 2 ** 30,
      generation: 0,
      durable_at: null,
      dirty_bytes: 0,
      stored_bytes: 0,
    };
    const nothing = { host_id: null, started_at: null, stopped_at: null, reason: null };
    assert.deepEqual(rest, {
      name,
      org_id: owner.org_id,
      created_by: owner.user_id,
      image: 'debian-12',
      cpus: 1,
      memory_mib: 512,
      disk_gib: 8,
      labels: {},
      idle_timeout_seconds: null,
      wake_on_connect: false,
      restart: 'never',
      auto_flush_seconds: 60,
      generations_keep: { last: 24, daily_days: 14 },
      egress: { mode: 'open', allow: [] },
      placement: { host_labels: {}, tolerations: [] },
      ssh: { host: api.context.ssh.hosts[0], port: (await portsOf([id]))[0] },
      host_keys: [],
      forked_from: null,
      deleting: false,
      vm: { id: null, instance_id: id, state: 'stopped', boot: 0, ...nothing, disk },
      disk,
    });
    assert.deepEqual((await client.get(`${INSTANCES}/${id}`)).body, answer.body);
  });

  test('every field is stored', async () => {
    const given = {
      name: newName(),
      image: 'debian-12',
      cpus: 16,
      memory_mib: 65_536,
      disk_gib: 1024,
      labels: { team: 'core', 'a/b.c-d_e': '', empty: 'ä ö' },
      auto_flush_seconds: null,
      generations_keep: { last: 1000, daily_days: 0 },
    };
    const { body } = await create(given);
    for (const [field, value] of Object.entries(given)) {
      assert.deepEqual(body[field as keyof InstanceOut], value, field);
    }
  });

  test('user_data is kept until the disk that ran it is durable, and never shown', async () => {
    const script = '#!/bin/sh\necho "ä"\n';
    const { body, text } = await create({ name: newName(), user_data: script });
    const { id } = body;
    assert.doesNotMatch(text, /echo|user_data/);
    await client.post(`${INSTANCES}/${id}/vm`);
    const { vm_id, user_data } = await api.agent.assigned(id);
    assert.equal(user_data, true);
    const theirs = () => api.agent.client.userData({ vm_id });
    assert.deepEqual(await theirs(), { script });
    await api.agent.commit(id, 1);
    // Durable, and not run on it: still to be.
    assert.deepEqual(await theirs(), { script });
    await api.agent.client.userDataGiven({ vm_id });
    assert.deepEqual(await theirs(), { script });
    await api.agent.commit(id, 2);
    assert.deepEqual(await theirs(), { script: null });
    assert.equal((await api.agent.assigned(id)).user_data, false);
    const told = await api.db.selectFrom('events').select('data').where('instance_id', '=', id).execute();
    assert.doesNotMatch(JSON.stringify(told), /echo/);
  });
  test('the same name in two organisations', async () => {
    const name = newName();
    assert.equal((await create({ name })).status, 201);
    const stranger = await api.person();
    assert.equal((await api.as(stranger).post(INSTANCES, { name })).status, 201);
  });

  test('concurrent creations get different ports', async () => {
    const made = await Promise.all(Array.from({ length: 20 }, () => create({ name: newName() })));
    assert.deepEqual([...new Set(made.map((each) => each.status))], [201]);
    const ports = await portsOf(made.map((each) => each.body.id));
    assert.equal(new Set(ports).size, 20);
  });

  test('a port that another program uses is skipped', async (t) => {
    const [host] = api.context.ssh.hosts;
    const last = Math.max(...(await portsOf([(await create({ name: newName() })).body.id])));
    const blocker = createServer();
    t.after(() => new Promise((resolve) => blocker.close(resolve)));
    const blocked = last + 1;
    await new Promise<void>((resolve) => blocker.listen(blocked, host, resolve));
    const made = [await create({ name: newName() }), await create({ name: newName() })];
    assert.deepEqual(
      made.map((each) => each.status),
      [201, 201],
    );
    assert.ok(!(await portsOf(made.map((each) => each.body.id))).includes(blocked));
  });
});

describe('200', () => {
  test('PATCH changes name, labels and settings at any time, and nothing else', async () => {
    const before = await instanceIn(api, owner, 'running');
    const generations_keep = { last: 1, daily_days: 365 };
    const change = { name: newName(), labels: { a: 'b' }, auto_flush_seconds: 5, generations_keep };
    const { body, status } = await client.patch<InstanceOut>(`${INSTANCES}/${before.id}`, change);
    assert.equal(status, 200);
    const fresh = (await client.get<InstanceOut>(`${INSTANCES}/${before.id}`)).body;
    assert.deepEqual(body, fresh);
    const started = { vm: 0, updated_at: 0, host_keys: [HOST_KEY] };
    assert.deepEqual({ ...before, ...change, ...started }, { ...body, vm: 0, updated_at: 0 });
    assert.ok(body.updated_at > before.updated_at);
    const assignment = await api.agent.known(before.id);
    assert.deepEqual([assignment.spec.hostname, assignment.spec.auto_flush_seconds], [change.name, 5]);
  });
  test('generations_keep null is the default again', async () => {
    const { id } = await api.instance(owner, { generations_keep: { last: 3, daily_days: 0 } });
    const { body } = await client.patch<InstanceOut>(`${INSTANCES}/${id}`, { generations_keep: null });
    assert.deepEqual(body.generations_keep, { last: 24, daily_days: 14 });
  });
  test('PATCH changes size while stopped', async () => {
    const { id } = await api.instance(owner);
    const change = { cpus: 2, memory_mib: 1024, disk_gib: 20 };
    const { body } = await client.patch<InstanceOut>(`${INSTANCES}/${id}`, change);
    assert.deepEqual([body.cpus, body.memory_mib, body.disk_gib], [2, 1024, 20]);
    assert.equal(body.disk.size_bytes, 20 * 2 ** 30);
    await client.post(`${INSTANCES}/${id}/vm`);
    const { spec } = await api.agent.assigned(id);
    assert.deepEqual([spec.cpus, spec.memory_mib, spec.disk_bytes], [2, 1024, 20 * 2 ** 30]);
    assert.equal((await api.agent.client.head(id))?.size_bytes, 20 * 2 ** 30);
  });
  test('PATCH with the disk size that it has', async () => {
    const { id } = await api.instance(owner);
    assert.equal((await client.patch(`${INSTANCES}/${id}`, { disk_gib: 8 })).status, 200);
  });
  test('PATCH with the name that it has', async () => {
    const { id, name } = await api.instance(owner);
    assert.equal((await client.patch(`${INSTANCES}/${id}`, { name })).status, 200);
  });
  test('labels hold emoji and scripts that are written with joiners; others that are invisible are named so', async () => {
    const someone = await api.person();
    const labels = { team: '👩\u200d💻', family: '👨\u200d👩\u200d👧', name: 'علی\u200cرضا' };
    const { id } = await api.instance(someone, { labels });
    const as_someone = api.as(someone);
    assert.deepEqual((await as_someone.get<{ labels: object }>(`${INSTANCES}/${id}`)).body.labels, labels);
    const query = `?label=${encodeURIComponent(`team=${labels.team}`)}`;
    assert.deepEqual(
      (await as_someone.get<{ data: { id: string }[] }>(INSTANCES + query)).body.data[0]?.id,
      id,
    );
    for (const hidden of ['\u200d', 'a\u200d\u200d', 'we\u202egpj', '\u{e0041}', 'a\u0007']) {
      const answer = await as_someone.post(INSTANCES, { name: newName(), labels: { a: hidden } });
      assertError(
        answer,
        'INVALID_REQUEST',
        /must not contain control characters, or others that are invisible/,
      );
    }
    const named = await as_someone.post('/v1/service-accounts', { name: labels.team, scope: 'vm:read' });
    assert.equal(named.status, 201, named.text);
  });

  test('the list filters by name, state and label', async () => {
    const someone = await api.person();
    const find = async (query: string) => {
      const answer = await api.as(someone).get<Page<InstanceOut>>(`${INSTANCES}?${query}`);
      assert.equal(answer.status, 200, answer.text);
      return answer.body.data.map((each) => each.id);
    };
    const a = await api.instance(someone, { labels: { env: 'prod', tier: '1' } });
    const b = await api.instance(someone, { labels: { env: 'dev' } });
    const c = await instanceIn(api, someone, 'running');
    assert.deepEqual(await find(`name=${a.name}`), [a.id]);
    assert.deepEqual(await find('name=nope'), []);
    assert.deepEqual(await find('state=running'), [c.id]);
    assert.deepEqual(await find('state=stopped'), [b.id, a.id]);
    assert.deepEqual(await find('label=env'), [b.id, a.id]);
    assert.deepEqual(await find('label=env=prod'), [a.id]);
    assert.deepEqual(await find('label=env%3Dprod&state=running'), []);
    assert.deepEqual(await find('label=env=prod&label=tier=1'), [a.id]);
    assert.deepEqual(await find('label=env&label=tier'), [a.id]);
    assert.deepEqual(await find('label=env=dev&label=tier'), []);
    assert.deepEqual(await find('label=env=dev&label=env=prod'), []);
    assert.deepEqual(await find(`label=${encodeURIComponent(`env=' or '1'='1`)}`), []);
  });
});

describe('400', () => {
  const bodies: Record<string, unknown> = {
    'no body': undefined,
    'no name': {},
    'a list': [],
    'a text': 'name',
    'a name with capitals': { name: 'Web' },
    'a name that starts with a hyphen': { name: '-web' },
    'a name that ends with a hyphen': { name: 'web-' },
    'a name of 64 characters': { name: 'a'.repeat(64) },
    'a name that ends with a line break': { name: 'web\n' },
    'a number for a name': { name: 7 },
    'an unknown field': { name: 'web', state: 'running' },
    'a forbidden key': '{"name":"web","__proto__":{}}',
    'a forbidden key, spelt otherwise': '{"name":"web","\\u005f_proto__":{}}',
    'no cpus': { name: 'web', cpus: 0 },
    '17 cpus': { name: 'web', cpus: 17 },
    'half a cpu': { name: 'web', cpus: 1.5 },
    'cpus as text': { name: 'web', cpus: '1' },
    '127 MiB': { name: 'web', memory_mib: 127 },
    '65537 MiB': { name: 'web', memory_mib: 65_537 },
    '0 GiB': { name: 'web', disk_gib: 0 },
    '1025 GiB': { name: 'web', disk_gib: 1025 },
    'an unknown image': { name: 'web', image: 'windows-11' },
    'an image that is a path': { name: 'web', image: '../debian-12' },
    'a flush every 4 seconds': { name: 'web', auto_flush_seconds: 4 },
    'a label that is a number': { name: 'web', labels: { a: 1 } },
    'a label with a line break': { name: 'web', labels: { a: 'b\n' } },
    'a label without a name': { name: 'web', labels: { '': 'b' } },
    '65 labels': {
      name: 'web',
      labels: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`l${i}`, ''])),
    },
  };
  for (const [what, body] of Object.entries(bodies)) {
    test(`POST with ${what}`, async () => {
      const answer =
        typeof body === 'string' && body.startsWith('{')
          ? await client.call('POST', INSTANCES, {
              raw: body,
              headers: { 'content-type': 'application/json' },
            })
          : await create(body);
      assertError(answer, 'INVALID_REQUEST');
    });
  }
  test('PATCH with an immutable, an unknown, or a bad field', async () => {
    const { id } = await api.instance(owner);
    for (const body of [{ image: 'debian-12' }, { id }, { labels: null }, { cpus: 0 }, { vm: {} }]) {
      assertError(await client.patch(`${INSTANCES}/${id}`, body), 'INVALID_REQUEST');
    }
  });
  test('PATCH with a smaller disk, whatever the state', async () => {
    for (const state of ['stopped', 'running'] as const) {
      const { id } = await instanceIn(api, owner, state);
      const answer = await client.patch(`${INSTANCES}/${id}`, { disk_gib: 7 });
      const { details } = assertError(answer, 'INVALID_REQUEST');
      assert.deepEqual(details, [{ field: 'disk_gib', issue: 'a disk only grows; it has 8 GiB' }]);
    }
  });
  test('user_data that is empty, too long, or contains a NUL', async () => {
    for (const user_data of ['', 'x'.repeat(65_537), 'ä'.repeat(40_000), 'a\0b', null, ['x']]) {
      assertError(await create({ name: newName(), user_data }), 'INVALID_REQUEST');
    }
    assert.equal((await create({ name: newName(), user_data: 'x'.repeat(65_536) })).status, 201);
  });
  test('an error names the field and what is wrong with it', async () => {
    const error = assertError(await create({ name: 'web', cpus: 0 }), 'INVALID_REQUEST');
    assert.deepEqual(error.details, [{ field: 'cpus', issue: 'must be >= 1' }]);
  });
  for (const query of [
    'state=on',
    'q=1',
    'label=%00',
    'name=%00',
    'name=a&name=b',
    `name=${'a'.repeat(64)}`,
  ]) {
    test(`GET ?${query.slice(0, 20)}`, async () => {
      assertError(await client.get(`${INSTANCES}?${query}`), 'INVALID_REQUEST');
    });
  }
  test('a label that no instance can have: the error names the parameter', async () => {
    for (const label of [
      '',
      '=prod',
      `env' or '1'='1`,
      `${'k'.repeat(64)}=v`,
      `env=${'v'.repeat(256)}`,
      'a=\n',
    ]) {
      const { details } = assertError(
        await client.get(`${INSTANCES}?label=env&label=${encodeURIComponent(label)}`),
        'INVALID_REQUEST',
      );
      assert.deepEqual(
        details,
        [{ field: 'label.1', issue: 'must be the key of a label, or key=value' }],
        label,
      );
    }
    const many = Array.from({ length: 17 }, (_, i) => `label=l${i}`).join('&');
    assertError(await client.get(`${INSTANCES}?${many}`), 'INVALID_REQUEST', /label/);
  });
  test('unknown query parameters on every other call', async () => {
    const { id } = await api.instance(owner);
    assertError(await client.post(`${INSTANCES}?x=1`, { name: newName() }), 'INVALID_REQUEST', /x/);
    for (const method of ['GET', 'PATCH', 'DELETE'] as const) {
      assertError(await client.call(method, `${INSTANCES}/${id}?x=1`), 'INVALID_REQUEST', /x/);
    }
  });
});

describe('403', () => {
  test('billing reads but does not write', async () => {
    const billing = await api.person({ org_id: owner.org_id, role: 'billing' });
    const { id } = await api.instance(owner);
    assert.equal((await api.as(billing).get(`${INSTANCES}/${id}`)).status, 200);
    assertError(await api.as(billing).post(INSTANCES, { name: newName() }), 'FORBIDDEN');
    assertError(await api.as(billing).patch(`${INSTANCES}/${id}`, {}), 'FORBIDDEN');
    assertError(await api.as(billing).delete(`${INSTANCES}/${id}`), 'FORBIDDEN');
  });
});

describe('404', () => {
  test("another organisation's instance, like an unknown one", async () => {
    const stranger = await api.person();
    const { id } = await api.instance(stranger);
    for (const method of ['GET', 'PATCH', 'DELETE'] as const) {
      const theirs = await client.call(method, `${INSTANCES}/${id}`);
      assertError(theirs, 'NOT_FOUND');
      for (const none of [newId('inst'), 'inst_', 'x', newId('vm')]) {
        const answer = await client.call(method, `${INSTANCES}/${none}`);
        assert.deepEqual(withoutRequestId(answer), withoutRequestId(theirs));
      }
    }
    assert.equal((await api.as(stranger).get(`${INSTANCES}/${id}`)).status, 200);
  });
});

describe('409', () => {
  test('a taken name, at creation and at a change', async () => {
    const { name } = await api.instance(owner);
    assertError(await create({ name }), 'CONFLICT', new RegExp(`"${name}" exists`));
    const { id } = await api.instance(owner);
    assertError(
      await client.patch(`${INSTANCES}/${id}`, { name }),
      'CONFLICT',
      new RegExp(`"${name}" exists`),
    );
  });
  test('of twenty concurrent creations of one name one succeeds', async () => {
    const name = newName();
    const answers = await Promise.all(Array.from({ length: 20 }, () => create({ name })));
    assert.deepEqual(answers.map((each) => each.status).sort(), [201, ...Array(19).fill(409)]);
  });
  for (const state of ['starting', 'running', 'stopping', 'failed'] as const) {
    test(`PATCH of cpus and memory while ${state}`, async () => {
      const { id } = await instanceIn(api, owner, state);
      for (const change of [{ cpus: 2 }, { memory_mib: 1024 }]) {
        const answer = await client.patch(`${INSTANCES}/${id}`, change);
        assertError(answer, 'CONFLICT', new RegExp(`is ${state}.*while it is stopped`));
      }
    });
  }
});

describe('429', () => {
  test('PATCH of a disk beyond the quota changes nothing; within it the disk grows', async () => {
    const someone = await api.person();
    const { id } = await api.instance(someone);
    await setQuota(api.db, someone.org_id, { disk_gib: 10 });
    const change = (disk_gib: number) =>
      api.as(someone).patch<InstanceOut>(`${INSTANCES}/${id}`, { disk_gib, name: newName() });
    const { details } = assertError(await change(11), 'QUOTA_EXCEEDED', /quota of disk_gib/);
    assert.deepEqual(details, [{ field: 'disk_gib', issue: 'quota 10, used 8, wanted 3' }]);
    assert.equal((await api.as(someone).get<InstanceOut>(`${INSTANCES}/${id}`)).body.disk_gib, 8);
    assert.equal((await change(10)).body.disk.size_bytes, 10 * 2 ** 30);
  });
});

describe('503', () => {
  test('no SSH port is free: the message says what helps', async (t) => {
    const small = await startApi({ first_port: 22_000, last_port: 22_001 });
    t.after(() => small.close());
    const someone = await small.person();
    for (let i = 0; i < 2; i++) await small.instance(someone);
    const answer = await small.as(someone).post(INSTANCES, { name: newName() });
    assertError(answer, 'UNAVAILABLE', /22000-22001.*BERTH_SSH_PORTS/);
    assert.ok(answer.headers['retry-after']);
  });
});
