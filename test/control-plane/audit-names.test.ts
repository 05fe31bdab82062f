/** GET /v1/audit with the names of actors and targets, and filtered by time and actor. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { AuditId } from '../../src/shared/ids.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Page } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { type Person, randomPublicKey } from '../support/people.ts';

const api = await apiForFile();

interface EntryOut {
  readonly id: string;
  readonly at: string;
  readonly actor: string;
  readonly actor_name: string | null;
  readonly action: string;
  readonly target: string | null;
  readonly target_name: string | null;
}

async function audit(who: Person, query: Record<string, string> = {}): Promise<readonly EntryOut[]> {
  const answer = await api.as(who).get<Page<EntryOut>>(`/v1/audit?${new URLSearchParams(query)}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body.data;
}
const targetsOf = async (who: Person) =>
  (await audit(who)).map(({ action, target_name }) => [action, target_name] as const).toReversed();

test('an entry names its actor and its target, the target by its present name', async () => {
  const who = await api.person();
  const { id } = await api.instance(who, { name: 'web' });
  await api.as(who).post(`/v1/instances/${id}/ports`, { port: 8080 });
  await api.as(who).patch(`/v1/instances/${id}`, { name: 'shop' });
  await api.as(who).post('/v1/api-keys', { name: 'ci', scope: 'vm:read' });
  await api.as(who).post(`/v1/orgs/${who.org_id}/invitations`, { email: 'eve@example.org', role: 'member' });
  assert.deepEqual(await targetsOf(who), [
    ['instance.create', 'shop'],
    ['port.create', 'shop:8080'],
    ['instance.change', 'shop'],
    ['api_key.create', 'ci'],
    ['invitation.create', 'eve@example.org'],
  ]);
  assert.deepEqual(new Set((await audit(who)).map(({ actor_name }) => actor_name)), new Set([who.email]));
});

test('a former member keeps the address of then, not that of today', async () => {
  const owner = await api.person();
  const gone = await api.person({ org_id: owner.org_id, role: 'admin' });
  await api.as(gone).post('/v1/api-keys', { name: 'ci', scope: 'vm:read' });
  await api.as(owner).delete(`/v1/orgs/${owner.org_id}/members/${gone.user_id}`);
  const email = `new-${gone.email}`;
  await api.db.updateTable('users').set({ email, email_key: email }).where('id', '=', gone.user_id).execute();
  const [removed, created] = await audit(owner);
  assert.deepEqual([removed?.action, removed?.target_name], ['member.remove', gone.email]);
  assert.deepEqual([created?.action, created?.actor_name], ['api_key.create', gone.email]);
});

test('what is gone keeps the name that it had last, in all of its entries', async () => {
  const who = await api.person();
  const key = await api.as(who).post<{ id: string }>('/v1/api-keys', { name: 'ci', scope: 'vm:read' });
  await api.as(who).delete(`/v1/api-keys/${key.body.id}`);
  const body = { name: 'laptop', public_key: randomPublicKey().line };
  const ssh = await api.as(who).post<{ id: string }>('/v1/me/ssh-keys', body);
  await api.as(who).delete(`/v1/me/ssh-keys/${ssh.body.id}`);
  assert.deepEqual(await targetsOf(who), [
    ['api_key.create', 'ci'],
    ['api_key.revoke', 'ci'],
    ['ssh_key.add', 'laptop'],
    ['ssh_key.revoke', 'laptop'],
  ]);
});

test('a name of another organisation is never told', async () => {
  const [who, stranger] = [await api.person(), await api.person()];
  const { id } = await api.instance(stranger, { name: 'secret' });
  await api.context.audit.append(api.db, who.org_id, {
    ...{ actor: who.user_id, action: 'test.append', target: id, ip: null, request_id: null, data: {} },
  });
  assert.deepEqual(await targetsOf(who), [['test.append', null]]);
});

test('the chain is whole: names are no part of it', async () => {
  const who = await api.person();
  const { id } = await api.instance(who);
  await api.as(who).patch(`/v1/instances/${id}`, { name: 'other' });
  await audit(who);
  while ((await api.context.audit.seal(api.db, 100)) > 0);
  const verdict = await api.context.audit.verify(api.db, who.org_id);
  assert.deepEqual([verdict.entries, verdict.broken_at, verdict.altered], [2, null, null]);
});

test('since a time, until a time, of an action, and of an actor by address', async () => {
  const who = await api.person();
  const admin = await api.person({ org_id: who.org_id, role: 'admin' });
  for (let n = 9; n >= 0; n--) {
    const at_ms = Date.now() - n * 86_400_000;
    await api.db
      .insertInto('audit_log')
      .values({
        ...{ org_id: who.org_id, id: newId('aud', at_ms) as AuditId, at: new Date(at_ms), seq: null },
        ...{ actor: n % 2 === 0 ? who.user_id : admin.user_id, action: n < 5 ? 'vm.start' : 'vm.stop' },
        ...{ target: null, ip: null, request_id: `req_${n}`, data: '{}', mac: Buffer.alloc(32) },
      })
      .execute();
  }
  const daysAgo = (days: number) => new Date(Date.now() - days * 86_400_000).toISOString();
  const days = async (query: Record<string, string>) =>
    (await audit(who, query)).map(({ at }) => Math.round((Date.now() - Date.parse(at)) / 86_400_000));
  assert.deepEqual(await days({ since: daysAgo(2.5) }), [0, 1, 2]);
  assert.deepEqual(await days({ until: daysAgo(7.5) }), [8, 9]);
  assert.deepEqual(await days({ since: daysAgo(6.5), action: 'vm.stop' }), [5, 6]);
  assert.deepEqual(await days({ actor: admin.email, since: daysAgo(5.5) }), [1, 3, 5]);
  assert.deepEqual(await days({ actor: 'nobody@example.org' }), []);
  assertError(await api.as(who).get('/v1/audit?since=yesterday'), 'INVALID_REQUEST');
});
