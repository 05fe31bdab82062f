/** Idempotency-Key: one request, one resource, one answer, however often and from wherever it is sent. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { apiForFile, newName } from '../support/api.ts';
import type { Answer, ErrorBody, Method } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { makeKey, makeSession, type Person, randomPublicKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const PASSWORD = 'a long passphrase';
const api = await apiForFile();
const owner = await api.person({ password: PASSWORD });

interface Made extends ErrorBody {
  readonly id: string;
  readonly key: string;
}
const WANTED = { name: 'ci', scope: 'vm:read' };

let keys = 0;
/** Not used in this file before. */
function newKey(): string {
  keys += 1;
  return `request-${keys}`;
}
function send(who: Person | string, key: string, json: unknown = WANTED, more: Record<string, string> = {}) {
  return api
    .as(who)
    .call<Made>('POST', '/v1/api-keys', { json, headers: { 'idempotency-key': key, ...more } });
}
function assertMade(answer: Answer<Made>): Made {
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}
function assertReplay(again: Answer<unknown>, first: Answer<unknown>): void {
  assert.equal(again.status, first.status, again.text);
  assert.equal(again.text, first.text);
  assert.equal(again.headers['idempotency-replayed'], 'true');
  assert.equal(first.headers['idempotency-replayed'], undefined);
}
async function keysNamed(name: string): Promise<number> {
  const rows = await api.db.selectFrom('api_keys').select('id').where('name', '=', name).execute();
  return rows.length;
}

test('50 concurrent identical requests create one key, and each gets that response or 409 with Retry-After: 1', async () => {
  const key = newKey();
  const wanted = { ...WANTED, name: 'parallel' };
  const answers = await Promise.all(Array.from({ length: 50 }, () => send(owner, key, wanted)));
  assert.equal(await keysNamed('parallel'), 1);
  const first = answers.filter((each) => each.status === 201 && !each.headers['idempotency-replayed']);
  assert.equal(first.length, 1);
  for (const answer of answers) {
    if (answer.status === 201) {
      assert.equal(answer.text, first[0]?.text);
      continue;
    }
    assertError(answer, 'IDEMPOTENCY_IN_PROGRESS');
    assert.equal(answer.headers['retry-after'], '1');
  }
  assertReplay(await send(owner, key, wanted), first[0] as Answer<Made>);
});

test('concurrent replays all get the stored response', async () => {
  const key = newKey();
  const first = await send(owner, key);
  assertMade(first);
  const again = await Promise.all(Array.from({ length: 30 }, () => send(owner, key)));
  for (const answer of again) assertReplay(answer, first);
});

test('audit log and outbox have the request once', async () => {
  const who = await api.person();
  const key = newKey();
  assertMade(await send(who, key));
  assertMade(await send(who, key));
  const entries = await api.db
    .selectFrom('audit_log')
    .select('action')
    .where('org_id', '=', who.org_id)
    .execute();
  const events = await api.db.selectFrom('events').select('type').where('org_id', '=', who.org_id).execute();
  assert.deepEqual(entries, [{ action: 'api_key.create' }]);
  assert.deepEqual(events, [{ type: 'api_key.created' }]);
});

describe('the key', () => {
  test('absent, empty and null mean no key', async () => {
    for (const none of ['', 'null', '  ']) {
      const [one, other] = [assertMade(await send(owner, none)), assertMade(await send(owner, none))];
      assert.notEqual(one.id, other.id);
    }
  });
  test('quoted is the same as bare', async () => {
    const key = newKey();
    const first = await send(owner, key);
    assertReplay(await send(owner, `"${key}"`), first);
  });
  test('1 and 255 printable characters are accepted', async () => {
    for (const key of ['~', 'x'.repeat(255), `"${'y'.repeat(255)}"`]) {
      const first = await send(owner, key);
      assertReplay(await send(owner, key), first);
    }
  });
  test('256 characters, an empty quoted one, and what is not printable are 400', async () => {
    for (const key of ['x'.repeat(256), `"${'x'.repeat(256)}"`, '""', 'a\tb', 'é']) {
      const { details } = assertError(await send(owner, key), 'INVALID_REQUEST');
      assert.equal(details?.[0]?.field, 'Idempotency-Key');
    }
  });
});

test('the same key with another body is 422; a body in another order is a replay', async () => {
  const key = newKey();
  const first = await send(owner, key);
  assertError(await send(owner, key, { ...WANTED, name: 'other' }), 'IDEMPOTENCY_KEY_REUSED');
  assertReplay(await send(owner, key, { scope: WANTED.scope, name: WANTED.name }), first);
});

describe('the scope of a key', () => {
  test('another principal, organisation or route does not share a key', async () => {
    const key = newKey();
    const { id } = assertMade(await send(owner, key));
    const other = await api.person({ org_id: owner.org_id });
    assert.notEqual(assertMade(await send(other, key)).id, id);
    const machine = await makeKey(api.db, owner, '*');
    assert.notEqual(assertMade(await send(machine.key, key)).id, id);
    const org = await api.as(owner).post<Made>('/v1/orgs', { name: 'Second' });
    const elsewhere = await send(owner, key, WANTED, { 'berth-org': org.body.id });
    assert.notEqual(assertMade(elsewhere).id, id);
    const headers = { 'idempotency-key': key };
    const route = await api.as(owner).call('POST', '/v1/orgs', { json: { name: 'Third' }, headers });
    assert.equal(route.status, 201, route.text);
  });
  test('a later session of the same user gets the replay', async () => {
    const key = newKey();
    const first = await send(owner, key);
    assertReplay(await send((await makeSession(api.db, owner.user_id)).session, key), first);
  });
  test('a caller who has lost the permission is refused before the response is looked up', async () => {
    const person = await api.person();
    const { id, key: token } = await makeKey(api.db, person, '*');
    const key = newKey();
    assertMade(await send(token, key));
    await api.db.updateTable('api_keys').set({ scope: 'vm:read' }).where('id', '=', id).execute();
    assertError(await send(token, key), 'FORBIDDEN');
  });
  test('the response is replayed after a rotation of the API key', async () => {
    const machine = await makeKey(api.db, owner, '*');
    const key = newKey();
    const first = await send(machine.key, key);
    const sudo = await api.as(owner).post('/v1/auth/sudo', { password: PASSWORD });
    const cookie = String(sudo.headers['set-cookie']).split(';')[0] ?? '';
    const path = `/v1/api-keys/${machine.id}/rotate`;
    const rotated = await api.as(owner).call<Made>('POST', path, { json: {}, headers: { cookie } });
    assert.equal(rotated.status, 200, rotated.text);
    assertError(await send(machine.key, key), 'UNAUTHENTICATED');
    assertReplay(await send(rotated.body.key, key), first);
  });
});

describe('the stored response', () => {
  test('is only stored on success: a failed request may be repeated, also with another body', async () => {
    const key = newKey();
    assertError(await send(owner, key, { ...WANTED, scope: 'nonsense' }), 'INVALID_REQUEST');
    const service_account_id = `sa_${'0'.repeat(26)}`;
    assertError(await send(owner, key, { ...WANTED, service_account_id }), 'NOT_FOUND');
    assertMade(await send(owner, key));
  });
  test('is sealed: no column of any table has the plain key', async () => {
    const { key: plain } = assertMade(await send(owner, newKey()));
    const tables = await sql<{ name: string }>`
      select table_name as name from information_schema.tables where table_schema = 'public'`.execute(api.db);
    const hex = Buffer.from(plain).toString('hex');
    for (const { name } of tables.rows) {
      const { rows } = await sql<{
        text: string;
      }>`select to_jsonb(t)::text as text from ${sql.table(name)} t`.execute(api.db);
      const held = rows.some(({ text }) => text.includes(plain) || text.includes(hex));
      assert.ok(!held, `${name} holds the plain key`);
    }
    const hash = createHash('sha256').update(plain).digest();
    const kept = await api.db.selectFrom('api_keys').select('id').where('token_hash', '=', hash).execute();
    assert.equal(kept.length, 1, 'but its hash is there');
  });
  test('is kept for 24 hours; then the key is unused again', async () => {
    const who = await api.person();
    const key = newKey();
    const { id } = assertMade(await send(who, key));
    const rows = () =>
      api.db
        .selectFrom('idempotency_keys')
        .select(sql<number>`extract(epoch from expires_at - now())::float8`.as('left_s'))
        .where('org_id', '=', who.org_id)
        .execute();
    const left_s = (await rows())[0]?.left_s ?? 0;
    assert.ok(left_s > 86_400 - 60 && left_s <= 86_400, String(left_s));
    await api.db
      .updateTable('idempotency_keys')
      .set({ expires_at: sql<Date>`now() - interval '1 second'` })
      .where('org_id', '=', who.org_id)
      .execute();
    const later = await send(who, key, { ...WANTED, name: 'later' });
    assert.notEqual(assertMade(later).id, id);
    assertReplay(await send(who, key, { ...WANTED, name: 'later' }), later);
  });
});

test("is written in the request's transaction: a failure at any step leaves neither key, resource, entry nor event", async (t) => {
  const who = await api.person();
  const steps: [string, object, string][] = [
    ['the audit entry', api.context.audit, 'append'],
    ['the answer kept', api.context.idempotency, 'seal'],
  ];
  for (const [step, target, method] of steps) {
    const key = newKey();
    const mocked = t.mock.method(target as Record<string, () => never>, method, () => {
      throw new Error(`broken at ${step}`);
    });
    assertError(await send(who, key), 'INTERNAL');
    mocked.mock.restore();
    for (const table of ['api_keys', 'idempotency_keys', 'audit_log', 'events'] as const) {
      const rows = await api.db.selectFrom(table).select('org_id').where('org_id', '=', who.org_id).execute();
      assert.deepEqual(rows, [], `${table} after a failure at ${step}`);
    }
    assertMade(await send(who, key));
    for (const table of ['api_keys', 'idempotency_keys', 'audit_log', 'events'] as const) {
      await api.db.deleteFrom(table).where('org_id', '=', who.org_id).execute();
    }
    await api.db.deleteFrom('audit_heads').where('org_id', '=', who.org_id).execute();
  }
});

describe('routes with Idempotency-Key', () => {
  async function twice(path: string, json?: unknown, method: Method = 'POST') {
    const headers = { 'idempotency-key': newKey() };
    const options = json === undefined ? { headers } : { json, headers };
    const first = await api.as(owner).call<Made>(method, path, options);
    return [first, await api.as(owner).call<Made>(method, path, options)] as const;
  }
  const creating: [string, () => unknown][] = [
    ['/v1/instances', () => ({ name: newName() })],
    ['/v1/me/ssh-keys', () => ({ name: 'laptop', public_key: randomPublicKey().line })],
    ['/v1/service-accounts', () => ({ name: 'robot', scope: 'vm:read' })],
    ['/v1/orgs', () => ({ name: 'Another' })],
    [`/v1/orgs/${owner.org_id}/invitations`, () => ({ email: 'guest@example.org', role: 'member' })],
  ];
  for (const [path, body] of creating) {
    test(`POST ${path.replace(owner.org_id, ':id')}`, async () => {
      const [first, again] = await twice(path, body());
      assert.equal(first.status, 201, first.text);
      assertReplay(again, first);
    });
  }
  test('a replayed invitation sends no second mail', async () => {
    const before = api.mails.length;
    await twice(`/v1/orgs/${owner.org_id}/invitations`, { email: 'once@example.org', role: 'member' });
    assert.equal(api.mails.length, before + 1);
  });
  test('POST …/vm, …/vm/restart and …/vm/suspend: the first response, without a second start', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    const [started, again] = await twice(`/v1/instances/${id}/vm`);
    assert.equal(started.status, 202, started.text);
    assertReplay(again, started);
    const running = await instanceIn(api, owner, 'running');
    const [restarted, once_more] = await twice(`/v1/instances/${running.id}/vm/restart`);
    assert.equal(restarted.status, 202, restarted.text);
    assertReplay(once_more, restarted);
    const awake = await instanceIn(api, owner, 'running');
    const [suspended, repeated] = await twice(`/v1/instances/${awake.id}/vm/suspend`);
    assert.equal(suspended.status, 202, suspended.text);
    assertReplay(repeated, suspended);
  });
  test('POST …/vm/flush: the same receipt', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    const [flushed, again] = await twice(`/v1/instances/${id}/vm/flush`);
    assert.equal(flushed.status, 200, flushed.text);
    assertReplay(again, flushed);
  });
  test('not auth routes and rotation: each request is a new one', async () => {
    const headers = { 'idempotency-key': newKey() };
    const login = { email: owner.email, password: PASSWORD };
    const sessions = [
      await api.client.call('POST', '/v1/auth/login', { json: login, headers }),
      await api.client.call('POST', '/v1/auth/login', { json: login, headers }),
    ];
    assert.notEqual(sessions[0]?.text, sessions[1]?.text);
    const machine = await makeKey(api.db, owner, '*');
    const sudo = await api.as(owner).post('/v1/auth/sudo', { password: PASSWORD });
    const cookie = String(sudo.headers['set-cookie']).split(';')[0] ?? '';
    const rotate = () =>
      api.as(owner).call<Made>('POST', `/v1/api-keys/${machine.id}/rotate`, {
        json: {},
        headers: { ...headers, cookie },
      });
    assert.notEqual((await rotate()).body.key, (await rotate()).body.key);
  });
});
