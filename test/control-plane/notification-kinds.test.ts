/** Every kind of notification, raised by what really happens, and who is told. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { reportExpiry } from '../../src/control-plane/api-keys/change-api-key.ts';
import { appendPrivate } from '../../src/control-plane/events/append.ts';
import { KIND_NAMES } from '../../src/control-plane/notifications/model.ts';
import { apiForFile, type VmOut } from '../support/api.ts';
import {
  type NotificationOut,
  notificationsOf,
  raiseNotificationsOfEvents,
} from '../support/notifications.ts';
import {
  makeServiceAccount,
  makeServiceKey,
  makeSudo,
  type Person,
  randomPublicKey,
} from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { totpCode } from '../support/totp-code.ts';

const api = await apiForFile();
const { agent, db } = api;
const PASSWORD = 'correct horse battery';
const WRONG = 'not the password';
const seen = new Set<string>();

/** What this caller was told of that kind, newest first. */
async function told(who: Person | string, kind: string): Promise<readonly NotificationOut[]> {
  await raiseNotificationsOfEvents(db);
  const all = (await notificationsOf(api.as(who), '?limit=100')).filter((each) => each.kind === kind);
  if (all.length > 0) seen.add(kind);
  return all;
}
async function only(who: Person | string, kind: string): Promise<NotificationOut> {
  const [first, ...more] = await told(who, kind);
  assert.ok(first, `${kind} was not told`);
  assert.deepEqual(more, [], `${kind} was told more than once`);
  return first;
}

/** An organisation with one of each role; `member` makes the instances. */
async function organisation() {
  const owner = await api.person();
  const in_it = (role: 'admin' | 'member' | 'billing') => api.person({ org_id: owner.org_id, role });
  return {
    owner,
    admin: await in_it('admin'),
    member: await in_it('member'),
    other: await in_it('member'),
    billing: await in_it('billing'),
  };
}

/** Creator, owner and admin are told of it; others of the organisation, and of others, are not. */
async function assertOfResource(
  people: Awaited<ReturnType<typeof organisation>>,
  kind: string,
  id: string,
): Promise<NotificationOut> {
  for (const who of [people.owner, people.admin, people.member]) {
    const { resource } = await only(who, kind);
    assert.deepEqual(resource, { type: 'instance', id });
  }
  for (const who of [people.other, people.billing, await api.person()]) {
    assert.deepEqual(await told(who, kind), []);
  }
  return only(people.member, kind);
}

describe('of an instance: its creator and the organisation’s owners and admins', () => {
  test('vm.failed', async () => {
    const people = await organisation();
    const { id, name } = await instanceIn(api, people.member, 'running');
    await agent.failed(id);
    const item = await assertOfResource(people, 'vm.failed', id);
    assert.equal(item.severity, 'critical');
    assert.match(item.title, new RegExp(name));
    assert.match(item.body, /It died\./);
    assert.deepEqual(item.data['reason'], { code: 'vm_died', message: 'It died.' });
  });

  test('vm.recovered', async () => {
    const people = await organisation();
    const { id } = await instanceIn(api, people.member, 'starting');
    await agent.ready(id, { code: 'recovered', message: 'From generation 3.' });
    const item = await assertOfResource(people, 'vm.recovered', id);
    assert.match(item.body, /generation 3/);
  });

  test('disk.flush_failed, of a flush that was asked for', async () => {
    const people = await organisation();
    const { id } = await instanceIn(api, people.member, 'running');
    const answering = api.as(people.member).post(`/v1/instances/${id}/vm/flush`);
    const flush_id = await agent.askedToFlush(id);
    await agent.beginFlush(flush_id);
    await agent.failFlush(flush_id);
    assert.equal((await answering).status, 503);
    const item = await assertOfResource(people, 'disk.flush_failed', id);
    assert.equal(item.data['cause'], 'asked');
    assert.match(item.body, /object store is away/);
  });

  test('disk.flush_failed, of an automatic flush', async () => {
    const people = await organisation();
    const { id } = await instanceIn(api, people.member, 'running');
    const { vm_id, epoch } = await agent.known(id);
    const error = { code: 'object_store_unavailable', message: 'It is away.' } as const;
    await agent.client.reportFlushFailure({ vm_id, epoch, error });
    assert.equal((await assertOfResource(people, 'disk.flush_failed', id)).data['cause'], 'automatic');
    const other = await agent.client.reportFlushFailure({ vm_id, epoch: epoch + 1, error });
    assert.equal(other.outcome, 'fenced');
    assert.equal((await only(people.member, 'disk.flush_failed')).count, 1);
  });

  test('disk.flush_failed, of a final flush: once, however often it is tried', async () => {
    const people = await organisation();
    const { id } = await instanceIn(api, people.member, 'stopping');
    const reason = { code: 'flush_pending', message: 'The final flush waits.' } as const;
    for (let n = 0; n < 3; n++) {
      await agent.observe(id, { kind: 'flush_pending', reason });
      const again = await api.as(people.member).delete<VmOut>(`/v1/instances/${id}/vm`);
      assert.deepEqual([again.status, again.body.reason?.code], [202, 'flush_pending']);
    }
    const item = await assertOfResource(people, 'disk.flush_failed', id);
    assert.deepEqual([item.data['cause'], item.count], ['final', 1]);
  });

  test('disk.nearly_full: above 90 %, once, and again after it was below 85 %', async () => {
    const people = await organisation();
    const { id } = await instanceIn(api, people.member, 'running');
    const use = async (used_bytes: number) => {
      await agent.heartbeat([{ instance_id: id, dirty_bytes: 0, root: { used_bytes, total_bytes: 1000 } }]);
      return (await told(people.member, 'disk.nearly_full'))[0]?.count ?? 0;
    };
    assert.equal(await use(900), 0);
    assert.equal(await use(901), 1);
    const item = await assertOfResource(people, 'disk.nearly_full', id);
    assert.match(item.body, /^90 %/);
    assert.equal(await use(990), 1);
    assert.equal(await use(860), 1);
    assert.equal(await use(950), 1, 'it was not below 85 %');
    assert.equal(await use(840), 1);
    assert.equal(await use(950), 2);
    const events = await api.as(people.owner).get<{ data: { type: string }[] }>('/v1/events');
    assert.ok(!events.body.data.some(({ type }) => type === 'disk.nearly_full'), 'it is no public event');
  });

  test('a service account that created the instance is notified; another is not', async () => {
    const owner = await api.person();
    const account = await makeServiceAccount(db, owner.org_id, '*');
    const { key } = await makeServiceKey(db, owner.org_id, '*', undefined, account);
    const { key: other } = await makeServiceKey(db, owner.org_id, '*');
    const made = await api.as(key).post<{ id: never }>('/v1/instances', { name: 'of-a-robot' });
    const { id } = made.body;
    assert.equal((await api.as(key).post(`/v1/instances/${id}/vm`)).status, 202);
    await agent.assigned(id);
    await agent.failed(id);
    assert.equal((await only(key, 'vm.failed')).resource?.id, id);
    assert.deepEqual(await told(other, 'vm.failed'), []);
    assert.equal((await only(owner, 'vm.failed')).resource?.id, id);
  });

  test('a creator who has left the organisation is not notified', async () => {
    const people = await organisation();
    const { id } = await instanceIn(api, people.member, 'running');
    const path = `/v1/orgs/${people.owner.org_id}/members/${people.member.user_id}`;
    assert.equal((await api.as(people.owner).delete(path)).status, 204);
    await agent.failed(id);
    assert.deepEqual(await told(people.member, 'vm.failed'), []);
    await only(people.owner, 'vm.failed');
  });
});

describe('of keys', () => {
  test('api_key.created: its maker, also of a service account’s, and that account', async () => {
    const { owner, admin } = await organisation();
    const made = await api.as(owner).post<{ id: string }>('/v1/api-keys', { name: 'ci', scope: 'vm:read' });
    const item = await only(owner, 'api_key.created');
    assert.deepEqual(item.resource, { type: 'api_key', id: made.body.id });
    assert.ok(!JSON.stringify(item).includes('berth_live_'), 'never the key');
    assert.deepEqual(await told(admin, 'api_key.created'), []);
    const account = await makeServiceAccount(db, owner.org_id, 'notifications:read');
    const body = { name: 'bot', scope: 'notifications:read', service_account_id: account };
    const { key } = (await api.as(admin).post<{ key: string }>('/v1/api-keys', body)).body;
    await only(admin, 'api_key.created');
    await only(key, 'api_key.created');
  });

  test('api_key.expiring: within seven days, once for each key and expiry', async () => {
    const { owner, admin, member } = await organisation();
    const make = (who: Person, days: number, more = {}) =>
      api.as(who).post<{ id: string; key: string }>('/v1/api-keys', {
        name: `of ${days} days`,
        scope: 'notifications:read',
        expires_in_seconds: days * 86_400,
        ...more,
      });
    await make(member, 8);
    const soon = await make(member, 6);
    await Promise.all([reportExpiry(db), reportExpiry(db), reportExpiry(db)]);
    const item = await only(member, 'api_key.expiring');
    assert.equal(item.resource?.id, soon.body.id);
    assert.deepEqual(await told(owner, 'api_key.expiring'), []);
    await reportExpiry(db);
    assert.equal((await only(member, 'api_key.expiring')).count, 1);
    const account = await makeServiceAccount(db, owner.org_id, 'notifications:read');
    const { key } = (await make(owner, 1, { service_account_id: account })).body;
    await reportExpiry(db);
    for (const who of [key, owner, admin]) await only(who, 'api_key.expiring');
  });

  test('ssh_key.added', async () => {
    const who = await api.person();
    const { line, fingerprint } = randomPublicKey();
    await api.as(who).post('/v1/me/ssh-keys', { name: 'laptop', public_key: line });
    assert.ok((await only(who, 'ssh_key.added')).body.includes(fingerprint));
  });
});

describe('of an account', () => {
  const person = () => api.person({ password: PASSWORD });
  const login = (who: Person, password = PASSWORD, agent = 'Firefox/1') =>
    api.client.call<{ readonly session_token: string }>('POST', '/v1/auth/login', {
      json: { email: who.email, password },
      headers: { 'user-agent': agent },
    });

  test('account.locked: by login, and by sudo', async () => {
    const [one, two] = [await person(), await person()];
    for (let n = 0; n < 7; n++) await login(one, WRONG);
    const item = await only(one, 'account.locked');
    assert.equal(item.count, 1);
    assert.equal(item.data['ip'], '127.0.0.1');
    for (let n = 0; n < 5; n++) await api.as(two).post('/v1/auth/sudo', { password: WRONG });
    await only(two, 'account.locked');
  });

  test('login.new_place: not the first, not a known one, each new one by itself', async () => {
    const who = await person();
    await db.deleteFrom('sessions').where('user_id', '=', who.user_id).execute();
    const session = (await login(who)).body;
    const { session_token } = session;
    await login(who, PASSWORD, 'Firefox/2.1');
    assert.deepEqual(await told(session_token, 'login.new_place'), []);
    await Promise.all([login(who, PASSWORD, 'curl/8'), login(who, PASSWORD, 'curl/8')]);
    const item = await only(session_token, 'login.new_place');
    assert.equal(item.resource?.type, 'session');
    assert.match(item.body, /127\.0\.0\.1.*curl/);
    const agent = 'Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0';
    await login(who, PASSWORD, agent);
    const [newest, ...others] = await told(session_token, 'login.new_place');
    assert.equal(others.length, 1);
    assert.match(newest?.body ?? '', /^Somebody logged in, .* with Firefox on Linux\. If/);
  });

  test('login.new_place: as many places as are kept, and no more', async () => {
    const who = await person();
    const places = Array.from({ length: 510 }, (_, n) => ({
      user_id: who.user_id,
      location_hash: createHash('sha256').update(`${n}`).digest(),
      last_seen_at: new Date(1_000 * n),
    }));
    await db.insertInto('known_locations').values(places).execute();
    await login(who);
    const left = await db
      .selectFrom('known_locations')
      .selectAll()
      .where('user_id', '=', who.user_id)
      .orderBy('last_seen_at')
      .execute();
    assert.equal(left.length, 500);
    assert.equal(left[0]?.last_seen_at.getTime(), 11_000, 'the oldest went, no other was touched');
    await only(who, 'login.new_place');
  });

  test('login.new_place: where no place is kept, the sessions that are open are known', async () => {
    const who = await person();
    await login(who, PASSWORD, 'test');
    assert.deepEqual(await told(who, 'login.new_place'), []);
    const other = await person();
    await login(other, PASSWORD, 'not test');
    await only(other, 'login.new_place');
  });

  test('mfa.added, mfa.removed: of a confirmed factor', async () => {
    const who = await person();
    const path = '/v1/me/mfa/factors';
    const add = async () => {
      const options = { json: { type: 'totp', name: 'phone' }, headers: await makeSudo(db, who) };
      return (await api.as(who).call<{ id: string; secret: string }>('POST', path, options)).body;
    };
    const remove = async (id: string) =>
      api.as(who).call('DELETE', `${path}/${id}`, { headers: await makeSudo(db, who) });
    assert.equal((await remove((await add()).id)).status, 204);
    for (const kind of ['mfa.added', 'mfa.removed'])
      assert.deepEqual(await told(who, kind), [], 'an unconfirmed one guarded nothing');
    const { id, secret } = await add();
    const code = totpCode(secret, Math.floor(Date.now() / 1000));
    assert.equal((await api.as(who).post(`${path}/${id}/verify`, { code })).status, 200);
    const added = await only(who, 'mfa.added');
    assert.match(added.body, /authenticator app "phone" was added, from the address 127\.0\.0\.1/);
    assert.deepEqual([added.severity, added.resource], ['critical', { type: 'mfa_factor', id }]);
    assert.equal((await remove(id)).status, 204);
    assert.match((await only(who, 'mfa.removed')).body, /authenticator app "phone" was removed/);
  });

  test('password.changed: by oneself, and by a reset', async () => {
    const who = await person();
    const next = 'another good password';
    const body = { current_password: PASSWORD, new_password: next };
    assert.equal((await api.as(who).post('/v1/auth/password', body)).status, 204);
    assert.match((await only(who, 'password.changed')).body, /was changed/);
    await api.client.post('/v1/auth/password-reset', { email: who.email });
    let token: string | undefined;
    while (token === undefined) {
      token = api.mails
        .filter(({ to }) => to === who.email)
        .flatMap(({ text }) => /\bberth_mail_\w+/.exec(text) ?? [])[0];
      await new Promise(setImmediate);
    }
    await api.client.post('/v1/auth/password-reset/confirm', { token, new_password: PASSWORD });
    const session = (await login(who)).body;
    const item = await only(session.session_token, 'password.changed');
    assert.equal(item.count, 2);
    assert.match(item.body, /reset by mail/);
  });
});

describe('of an organisation', () => {
  test('billing_email.changed: who did it, owners, admins and billing', async () => {
    const { owner, admin, member, billing } = await organisation();
    const path = `/v1/orgs/${owner.org_id}/billing-email`;
    const headers = await makeSudo(db, billing);
    const json = { email: 'bills@example.org' };
    assert.equal((await api.as(billing).call('PUT', path, { json, headers })).status, 200);
    for (const who of [owner, admin, billing]) {
      assert.equal((await only(who, 'billing_email.changed')).data['billing_email'], json.email);
    }
    assert.deepEqual(await told(member, 'billing_email.changed'), []);
  });

  test('org.invited: the account with that address, if there is one', async () => {
    const { owner } = await organisation();
    const guest = await api.person();
    const path = `/v1/orgs/${owner.org_id}/invitations`;
    for (const email of [guest.email.toUpperCase(), 'nobody@example.org']) {
      assert.equal((await api.as(owner).post(path, { email, role: 'member' })).status, 201);
    }
    const item = await only(guest, 'org.invited');
    assert.ok(!JSON.stringify(item).includes('berth_mail_'), 'never the token');
    assert.deepEqual(item.resource, { type: 'organisation', id: owner.org_id });
    assert.deepEqual(await told(owner, 'org.invited'), []);
  });

  test('org.role_changed: the member', async () => {
    const { owner, member, admin } = await organisation();
    const path = `/v1/orgs/${owner.org_id}/members/${member.user_id}`;
    assert.equal((await api.as(owner).patch(path, { role: 'admin' })).status, 200);
    const item = await only(member, 'org.role_changed');
    assert.deepEqual([item.data['previous_role'], item.data['role']], ['member', 'admin']);
    for (const who of [owner, admin]) assert.deepEqual(await told(who, 'org.role_changed'), []);
  });

  test('webhook.failing and webhook.disabled: the webhook’s creator, owners and admins', async () => {
    const { owner, admin, member, billing } = await organisation();
    const { org_id } = owner;
    const asked = { url: 'http://127.0.0.1:9/', events: ['*'], name: 'ci' };
    const { secret: _, ...webhook } = (
      await api.as(admin).post<Record<string, unknown>>('/v1/webhooks', asked)
    ).body;
    // As the senders say it after some failures.
    await appendPrivate(db, {
      type: 'webhook.failing',
      org_id,
      user_id: null,
      data: { webhook },
      actor: 'system',
    });
    const path = `/v1/webhooks/${String(webhook['id'])}`;
    assert.equal((await api.as(admin).patch(path, { status: 'disabled' })).status, 200);
    for (const kind of ['webhook.failing', 'webhook.disabled']) {
      for (const who of [owner, admin]) {
        assert.deepEqual((await only(who, kind)).resource, { type: 'webhook', id: webhook['id'] });
      }
      for (const who of [member, billing]) assert.deepEqual(await told(who, kind), []);
    }
  });
});

after(() => assert.deepEqual([...seen].sort(), KIND_NAMES.toSorted(), 'every kind was raised here'));
