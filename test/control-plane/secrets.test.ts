/** Secrets by the API: what is set and told to the host, and that no answer, log or row shows a value. */
import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { authoritiesOf } from '../../src/control-plane/secrets/authority.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { newId } from '../../src/shared/ids.ts';
import { Sealer } from '../../src/shared/seal.ts';
import { apiForFile, type InstanceOut, newName } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const { agent, context } = api;
const owner = await api.person();
const client = api.as(owner);
/** What the newest entry of this action says. */
const audited = async (action: string) => {
  const entry = await api.db
    .selectFrom('audit_log')
    .select('data')
    .where('action', '=', action)
    .orderBy('id', 'desc')
    .executeTakeFirstOrThrow();
  return entry.data as Record<string, unknown>;
};

interface SecretOut {
  readonly name: string;
  readonly hosts: readonly string[];
  readonly has_value: boolean;
  readonly updated_at: string;
}

const HOSTS = ['api.example.com'];
const pathOf = (id: string, name = '') => `/v1/instances/${id}/secrets${name && `/${name}`}`;
const set = (id: string, name: string, body: unknown = { value: 'v', hosts: HOSTS }) =>
  client.put(pathOf(id, name), body);
const listed = async (id: string, who = client) => {
  const { status, body, text } = await who.get<Page<SecretOut>>(pathOf(id));
  assert.equal(status, 200, text);
  return body.data;
};
/** What the host gets. */
const secretsOf = async (id: InstanceId) =>
  (await agent.assignments()).find((each) => each.instance_id === id)?.secrets ?? [];

describe('PUT', () => {
  test('204: the list has name and hosts in their stored form, and no value', async () => {
    const { id } = await api.instance(owner);
    const value = 'sk-ünïcode secret';
    const { status, text } = await set(id, 'TOKEN', { value, hosts: ['API.Example.com.', '*.example.org'] });
    assert.deepEqual([status, text], [204, '']);
    const [secret, ...others] = await listed(id);
    const { updated_at, ...rest } = secret ?? assert.fail('no secret');
    assert.deepEqual(rest, { name: 'TOKEN', hosts: ['api.example.com', '*.example.org'], has_value: true });
    assert.match(updated_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    assert.equal(others.length, 0);
  });
  test('the host gets the value with a placeholder, which stays when the value is replaced', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    assert.deepEqual(await secretsOf(id), []);
    await set(id, 'B', { value: 'first', hosts: HOSTS });
    await set(id, 'A', { value: 'other', hosts: ['*.example.org'] });
    const before = await secretsOf(id);
    assert.deepEqual(
      before.map(({ placeholder: _random, ...rest }) => rest),
      [
        { name: 'A', hosts: ['*.example.org'], value: 'other' },
        { name: 'B', hosts: HOSTS, value: 'first' },
      ],
    );
    for (const { placeholder } of before) assert.match(placeholder, /^berth-secret-[0-9a-f]{32}$/);
    assert.equal(new Set(before.map(({ placeholder }) => placeholder)).size, 2);
    await set(id, 'B', { value: 'second', hosts: ['b.example.com'] });
    const after = (await secretsOf(id))[1];
    assert.deepEqual(after, { ...before[1], hosts: ['b.example.com'], value: 'second' });
  });
  test('a change wakes the host', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const told = agent.assigned(id, 'it has the secret', ({ secrets }) => secrets?.[0]?.name === 'WOKEN');
    await set(id, 'WOKEN');
    await told;
    const forgotten = agent.assigned(id, 'it has no secret', ({ secrets }) => secrets === undefined);
    await client.delete(pathOf(id, 'WOKEN'));
    await forgotten;
  });
  for (const [what, name, body, field] of [
    ['a name in lower case', 'token', { value: 'v', hosts: HOSTS }, 'name'],
    ['a name with a digit first', '1A', { value: 'v', hosts: HOSTS }, 'name'],
    ['a name of 65 characters', 'A'.repeat(65), { value: 'v', hosts: HOSTS }, 'name'],
    ['no value', 'A', { hosts: HOSTS }, 'value'],
    ['an empty value', 'A', { value: '', hosts: HOSTS }, 'value'],
    ['a line break', 'A', { value: 'hidden-word\n', hosts: HOSTS }, 'value'],
    ['NUL', 'A', { value: 'hidden-word\0', hosts: HOSTS }, 'value'],
    ['a C1 control', 'A', { value: 'hidden-word\u0085', hosts: HOSTS }, 'value'],
    ['half a surrogate pair', 'A', { value: 'hidden-word\ud800', hosts: HOSTS }, 'value'],
    ['65,537 bytes', 'A', { value: `${'ü'.repeat(32_768)}x`, hosts: HOSTS }, 'value'],
    ['a number', 'A', { value: 4711, hosts: HOSTS }, 'value'],
    ['no hosts', 'A', { value: 'v' }, 'hosts'],
    ['an empty list', 'A', { value: 'v', hosts: [] }, 'hosts'],
    [
      '21 hosts',
      'A',
      { value: 'v', hosts: Array.from({ length: 21 }, (_, i) => `h${i}.example.com`) },
      'hosts',
    ],
    ['an address', 'A', { value: 'v', hosts: [...HOSTS, '203.0.113.7'] }, 'hosts.1'],
    ['a port', 'A', { value: 'v', hosts: ['example.com:443'] }, 'hosts.0'],
    ['a URL', 'A', { value: 'v', hosts: ['https://example.com'] }, 'hosts.0'],
    ['every name', 'A', { value: 'v', hosts: ['*'] }, 'hosts.0'],
    ['localhost', 'A', { value: 'v', hosts: ['localhost'] }, 'hosts.0'],
    ['an underscore', 'A', { value: 'v', hosts: ['a_b.example.com'] }, 'hosts.0'],
    ['an unknown field', 'A', { value: 'v', hosts: HOSTS, host: 'a' }, 'host'],
  ] as const) {
    test(`400 for ${what}, naming ${field}; nothing changes, and no word of the value returns`, async () => {
      const { id } = await api.instance(owner);
      await set(id, 'A', { value: 'before', hosts: ['kept.example.com'] });
      const answer = await client.put<{ error: { details: { field: string }[] } }>(pathOf(id, name), body);
      assertError(answer, 'INVALID_REQUEST');
      assert.equal(answer.body.error.details[0]?.field, field, answer.text);
      assert.doesNotMatch(answer.text, /hidden-word|4711/);
      assert.deepEqual(
        (await listed(id)).map(({ name, hosts }) => [name, hosts]),
        [['A', ['kept.example.com']]],
      );
    });
  }
  test('65,536 bytes and 20 hosts are possible', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const hosts = Array.from({ length: 20 }, (_, i) => `h${i}.example.com`);
    assert.equal((await set(id, 'A', { value: 'ü'.repeat(32_768), hosts })).status, 204);
    assert.equal((await secretsOf(id))[0]?.value, 'ü'.repeat(32_768));
  });
  test('429 past 50 secrets, naming the limit; one that exists can be replaced', async () => {
    const { id } = await api.instance(owner);
    const answers = await Promise.all(Array.from({ length: 60 }, (_, i) => set(id, `S${i}`)));
    assert.equal(answers.filter(({ status }) => status === 204).length, 50);
    assertError(await set(id, 'ONE_MORE'), 'QUOTA_EXCEEDED', /50 secrets/);
    const [newest] = await listed(id);
    assert.equal((await set(id, newest?.name ?? '')).status, 204);
  });
  test('409 for an instance that is being deleted, whose secrets are gone', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await set(id, 'A');
    await client.delete(`/v1/instances/${id}`);
    assertError(await set(id, 'A'), 'CONFLICT');
    assert.deepEqual(await listed(id), []);
    assert.deepEqual(await secretsOf(id), []);
  });
});

test('the list is read page by page, newest first', async () => {
  const { id } = await api.instance(owner);
  for (const name of ['A', 'B', 'C']) await set(id, name);
  const first = (await client.get<Page<SecretOut>>(`${pathOf(id)}?limit=2`)).body;
  const second = (await client.get<Page<SecretOut>>(`${pathOf(id)}?limit=2&cursor=${first.next_cursor}`))
    .body;
  assert.deepEqual(
    [...first.data, ...second.data].map(({ name }) => name),
    ['C', 'B', 'A'],
  );
});

test('DELETE: 204, then 404; a name that can be none is 404', async () => {
  const { id } = await api.instance(owner);
  await set(id, 'A');
  assert.equal((await client.delete(pathOf(id, 'A'))).status, 204);
  assertError(await client.delete(pathOf(id, 'A')), 'NOT_FOUND');
  for (const name of ['lower', '%00', 'A%00', 'A%0a'])
    assertError(await client.delete(pathOf(id, name)), 'NOT_FOUND');
});

test('another organisation gets 404 on every route; a reader may list and not write', async () => {
  const { id } = await api.instance(owner);
  await set(id, 'A');
  const stranger = api.as(await api.person());
  assertError(await stranger.put(pathOf(id, 'A'), { value: 'v', hosts: HOSTS }), 'NOT_FOUND');
  assertError(await stranger.get(pathOf(id)), 'NOT_FOUND');
  assertError(await stranger.delete(pathOf(id, 'A')), 'NOT_FOUND');
  assertError(await client.get(pathOf(newId('inst'))), 'NOT_FOUND');
  const reader = api.as((await makeKey(api.db, owner, 'vm:read instances:write')).key);
  assert.equal((await listed(id, reader)).length, 1);
  assertError(await reader.put(pathOf(id, 'A'), { value: 'v', hosts: HOSTS }), 'FORBIDDEN');
  assertError(await reader.delete(pathOf(id, 'A')), 'FORBIDDEN');
});

test('the audit log says who set which secret for which hosts', async () => {
  const { id } = await api.instance(owner);
  await set(id, 'AUDITED');
  await client.delete(pathOf(id, 'AUDITED'));
  for (const action of ['secret.set', 'secret.delete']) {
    const { credential: _session, ...data } = await audited(action);
    assert.deepEqual(data, { name: 'AUDITED', hosts: HOSTS });
  }
});

describe('POST …/fork', () => {
  async function parentWithSecret(): Promise<InstanceOut> {
    const parent = await instanceIn(api, owner, 'running');
    await agent.commit(parent.id, 1);
    await set(parent.id, 'A', { value: 'of the parent', hosts: HOSTS });
    return parent;
  }
  const fork = async (id: string, body: Record<string, unknown>, who = client) =>
    who.post<InstanceOut>(`/v1/instances/${id}/fork`, { name: newName(), ...body });

  test('inherits names and hosts, without values and variables', async () => {
    const parent = await parentWithSecret();
    const { body } = await fork(parent.id, {});
    const [secret] = await listed(body.id);
    assert.deepEqual([secret?.name, secret?.hosts, secret?.has_value], ['A', HOSTS, false]);
    await client.post(`/v1/instances/${body.id}/vm`, {});
    assert.deepEqual(await secretsOf(body.id), []);
    assert.equal((await set(body.id, 'A', { value: 'its own', hosts: HOSTS })).status, 204);
    assert.equal((await secretsOf(body.id))[0]?.value, 'its own');
  });
  test('with {"secrets":true}: the values, and the placeholders of the parent', async () => {
    const parent = await parentWithSecret();
    const { body } = await fork(parent.id, { secrets: true });
    await client.post(`/v1/instances/${body.id}/vm`, {});
    assert.deepEqual(await secretsOf(body.id), await secretsOf(parent.id));
    assert.equal((await secretsOf(body.id))[0]?.value, 'of the parent');
    assert.equal((await audited('instance.fork'))['secrets'], true);
  });
  test('403 for values without vm:write, before the body is validated', async () => {
    const parent = await parentWithSecret();
    const maker = api.as((await makeKey(api.db, owner, 'instances:write')).key);
    assertError(await fork(parent.id, { secrets: true }, maker), 'FORBIDDEN', /vm:write/);
    assertError(await fork(parent.id, { secrets: true, name: '' }, maker), 'FORBIDDEN');
    assert.equal((await fork(parent.id, { secrets: false }, maker)).status, 201);
  });
});

describe('the certificate authority', () => {
  const authorityOf = async (id: InstanceId, of = agent) =>
    (await of.assignments()).find((each) => each.instance_id === id)?.secrets_authority;
  const withSecret = async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await set(id, 'A');
    return id;
  };

  test('an authority for ten years that signs no other authority', async () => {
    const id = await withSecret();
    const { certificate: pem = '' } = (await authorityOf(id)) ?? assert.fail('none');
    const certificate = new X509Certificate(pem);
    assert.equal(certificate.ca, true);
    assert.equal(certificate.subject, `CN=Berth secrets of ${id}`);
    const days = (certificate.validToDate.getTime() - Date.now()) / 86_400_000;
    assert.ok(days > 3_640 && days < 3_660, `${days} days`);
  });
  test('is another for each instance, so that a host can sign only for guests that it runs', async () => {
    const [one, other, none] = [
      await withSecret(),
      await withSecret(),
      await instanceIn(api, owner, 'running'),
    ];
    const [of_one, of_other] = [await authorityOf(one), await authorityOf(other)];
    assert.ok(of_one && of_other);
    assert.notEqual(of_one.certificate, of_other.certificate);
    assert.notEqual(of_one.private_key, of_other.private_key);
    assert.equal(await authorityOf(none.id), undefined);
    assert.deepEqual(await authorityOf(one), of_one, 'it stays');
  });
  test('ends with the last secret; the next one begins with another', async () => {
    const id = await withSecret();
    await set(id, 'B');
    const first = await authorityOf(id);
    await client.delete(pathOf(id, 'A'));
    assert.deepEqual(await authorityOf(id), first);
    await client.delete(pathOf(id, 'B'));
    assert.equal(await authorityOf(id), undefined);
    await set(id, 'A');
    const second = await authorityOf(id);
    assert.ok(first && second);
    assert.notEqual(second.private_key, first.private_key);
  });
  test('is another in a fork, with the values of the parent or without', async () => {
    const parent = await withSecret();
    await agent.commit(parent, 1);
    const of_parent = (await authorityOf(parent)) ?? assert.fail('none');
    for (const secrets of [true, false]) {
      const wanted = { name: newName(), secrets };
      const { body } = await client.post<InstanceOut>(`/v1/instances/${parent}/fork`, wanted);
      await client.post(`/v1/instances/${body.id}/vm`, {});
      if (!secrets) {
        assert.equal(await authorityOf(body.id), undefined);
        await set(body.id, 'A');
      }
      const of_fork = (await authorityOf(body.id)) ?? assert.fail('none');
      assert.notEqual(of_fork.private_key, of_parent.private_key);
    }
    assert.deepEqual(await authorityOf(parent), of_parent);
  });
  test('does not open with another key, nor as that of another instance', async () => {
    const [one, other] = [await withSecret(), await withSecret()];
    const another_key = new Sealer(Buffer.alloc(32, 7), 'berth secrets v1');
    await assert.rejects(authoritiesOf(api.db, another_key, [one]), /does not open/);
    const of_one = await api.db
      .selectFrom('instance_authorities')
      .select(['certificate', 'private_key'])
      .where('instance_id', '=', one)
      .executeTakeFirstOrThrow();
    await api.db.updateTable('instance_authorities').set(of_one).where('instance_id', '=', other).execute();
    await assert.rejects(authoritiesOf(api.db, context.secrets, [other]), /does not open/);
    await api.db.deleteFrom('instance_authorities').where('instance_id', '=', other).execute();
  });
});

test('no row, event or audit entry of the database contains a value, and the search finds the hosts', async () => {
  const { id } = await instanceIn(api, owner, 'running');
  const [value, host] = ['needle-0123456789abcdef', 'haystack.example.com'];
  await set(id, 'A', { value, hosts: [host] });
  await set(id, 'A', { value: `${value}\n`, hosts: [host] });
  await agent.commit(id, 1);
  const key = { headers: { 'idempotency-key': newName() } };
  await client.post(`/v1/instances/${id}/fork`, { name: newName(), secrets: true }, key);
  await client.delete(pathOf(id, 'A'));
  await set(id, 'A', { value, hosts: [host] });
  assert.ok((await tablesWith(host)).length >= 2);
  assert.deepEqual(await tablesWith(value), []);
  assert.deepEqual(await tablesWith(Buffer.from(value).toString('hex')), []);
});

/** The tables that have a row with this text. */
async function tablesWith(text: string): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select table_name as name from information_schema.tables where table_schema = 'public'`.execute(api.db);
  const found: string[] = [];
  for (const { name } of rows) {
    const hits = await sql`
      select 1 from ${sql.table(name)} t where position(${text} in t::text) > 0 limit 1`.execute(api.db);
    if (hits.rows.length > 0) found.push(name);
  }
  return found;
}
