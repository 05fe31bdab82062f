/** A change of address, confirmed by mail; and the end of an account. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { requestPasswordReset } from '../../src/control-plane/identity/reset-password.ts';
import { updateEmail } from '../../src/control-plane/identity/store.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { setCookieOf } from '../support/cookies.ts';
import { assertError } from '../support/expect.ts';
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';
import { makeMailFolder } from '../support/mail-folder.ts';
import { makeSudo, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const mail = await makeMailFolder();
const api = await apiForFile();
mail.collectFrom({ db: api.db, mailbox: api.context.mailbox });
after(() => mail.close());
const PASSWORD = 'correct horse battery';
const person = () => api.person({ password: PASSWORD });
const newAddress = () => `${newId('usr')}@example.org`;

const change = (who: Person, email: string, password = PASSWORD) =>
  api.as(who).put('/v1/me/email', { email, password });
const confirm = (who: Person, token: string) => api.as(who).post('/v1/me/email/confirm', { token });
const login = (email: string) => api.client.post('/v1/auth/login', { email, password: PASSWORD });
const addressOf = async (who: Person) => (await api.as(who).get<{ email: string }>('/v1/me')).body.email;
const end = async (who: Person) =>
  api.as(who).call('DELETE', '/v1/me', { headers: await makeSudo(api.db, who) });

describe('202 and 204', () => {
  test('an address changes once its token is confirmed, and the old address gets a mail', async () => {
    const who = await person();
    const email = newAddress();
    const answer = await change(who, email);
    assert.deepEqual([answer.status, answer.text], [202, '']);
    assert.equal(await addressOf(who), who.email);
    assertError(await login(email), 'UNAUTHENTICATED');
    const token = await mail.token(email);
    const [told = ''] = await until('the mail to the address before', async () => {
      const mails = await mail.to(who.email);
      return mails.length > 0 && mails;
    });
    assert.ok(told.includes(email) && !told.includes('berth_mail_'));
    assert.equal((await confirm(who, token)).status, 204);
    assert.equal(await addressOf(who), email);
    assert.equal((await login(email)).status, 200);
    assertError(await login(who.email), 'UNAUTHENTICATED');
  });

  test('a password reset that was sent to the old address is void', async () => {
    const who = await person();
    await api.client.post('/v1/auth/password-reset', { email: who.email });
    const reset = await mail.token(who.email);
    const email = newAddress();
    await change(who, email);
    assert.equal((await confirm(who, await mail.token(email))).status, 204);
    const body = { token: reset, new_password: 'another good password' };
    assertError(await api.client.post('/v1/auth/password-reset/confirm', body), 'INVALID_REQUEST');
  });

  test('a password reset that is requested during the change is not sent to the old address', async () => {
    const who = await person();
    const { asked } = await api.db.transaction().execute(async (tx) => {
      await updateEmail(tx, who.user_id, newAddress());
      const reset = requestPasswordReset(api.db, api.context.mailbox, '', who.email);
      await untilLocksAreWaitedFor(api.db, 1);
      return { asked: reset };
    });
    await asked;
    assert.deepEqual(await mail.to(who.email), []);
  });
});

describe('400', () => {
  test('a token works once, for its account only, and only the last one sent', async () => {
    const who = await person();
    const [first, second] = [newAddress(), newAddress()];
    await change(who, first);
    const void_token = await mail.token(first);
    await change(who, second);
    const token = await mail.token(second);
    assertError(await confirm(who, void_token), 'INVALID_REQUEST');
    assertError(await confirm(await person(), token), 'INVALID_REQUEST');
    assert.equal((await confirm(who, token)).status, 204);
    assertError(await confirm(who, token), 'INVALID_REQUEST');
    assert.equal(await addressOf(who), second);
  });

  test('a token is valid for an hour', async () => {
    const who = await person();
    const email = newAddress();
    await change(who, email);
    const token = await mail.token(email);
    await api.db
      .updateTable('mail_tokens')
      .set({ expires_at: new Date(Date.now() - 1_000) })
      .where('user_id', '=', who.user_id)
      .execute();
    assertError(await confirm(who, token), 'INVALID_REQUEST');
  });

  test('a malformed address', async () => {
    const who = await person();
    for (const email of ['', 'nobody', 'a@', '@b', 'a b@example.org', `${'x'.repeat(250)}@example.org`]) {
      assertError(await change(who, email), 'INVALID_REQUEST');
    }
  });
});

describe('401', () => {
  test('a wrong password sends nothing', async () => {
    const who = await person();
    const email = newAddress();
    assertError(await change(who, email, 'not the password'), 'UNAUTHENTICATED');
    assert.equal((await change(who, newAddress())).status, 202);
    assert.deepEqual(await mail.to(email), []);
  });
});

describe('409', () => {
  test('the address of another account, in any case, and only its owner learns of it', async () => {
    const who = await person();
    const other = await person();
    const email = other.email.toUpperCase();
    assert.equal((await change(who, email)).status, 202);
    assertError(await confirm(who, await mail.token(email)), 'CONFLICT');
    assert.equal(await addressOf(who), who.email);
  });
});

test('an address with a comma or with < is one address, and its mail goes nowhere else', async () => {
  for (const local of ['ann,eve', 'ann<eve>']) {
    await mail.deliver({ id: newId('mail'), to: `${local}@example.org`, subject: 'One', text: 'A token.' });
  }
  assert.equal((await mail.to('<"ann,eve"@example.org>')).length, 1);
  assert.equal((await mail.to('<"ann eve "@example.org>')).length, 1);
});

describe('DELETE /v1/me', () => {
  test('204: account, sessions, and its own organisation are deleted; the address is free', async () => {
    const who = await person();
    const answer = await end(who);
    assert.deepEqual([answer.status, answer.text], [204, '']);
    const cleared = setCookieOf(answer);
    assert.deepEqual([cleared.name, cleared.value], ['__Host-berth_refresh', '']);
    assertError(await api.as(who).get('/v1/me'), 'UNAUTHENTICATED');
    assertError(await login(who.email), 'UNAUTHENTICATED');
    const { db } = api;
    assert.deepEqual(await db.selectFrom('users').select('id').where('id', '=', who.user_id).execute(), []);
    const own = db.selectFrom('organisations').select('id').where('id', '=', who.org_id);
    assert.deepEqual(await own.execute(), []);
  });

  test('204: an organisation with other members stays, without this member', async () => {
    const owner = await person();
    const member = await api.person({ org_id: owner.org_id, role: 'member' });
    assert.equal((await end(member)).status, 204);
    assert.equal((await api.as(owner).get(`/v1/orgs/${owner.org_id}`)).status, 200);
  });

  test('204: every remaining organisation has an audit entry of it', async () => {
    const [here, there] = [await person(), await person()];
    const who = await api.person({ org_id: here.org_id, role: 'member' });
    const { user_id } = who;
    const joined = { org_id: there.org_id, user_id, role: 'admin' as const };
    await api.db.insertInto('memberships').values(joined).execute();
    assert.equal((await end(who)).status, 204);
    const entries = await api.db
      .selectFrom('audit_log')
      .select(['org_id', 'action', 'target', sql<string | null>`data->>'role'`.as('role')])
      .where('actor', '=', user_id)
      .orderBy('serial')
      .execute();
    const removed = { org_id: there.org_id, action: 'member.remove', target: user_id, role: 'admin' };
    const deleted = { org_id: here.org_id, action: 'account.delete', target: user_id, role: null };
    assert.deepEqual(entries, [removed, deleted]);
  });

  test('204: an organisation that is created concurrently is deleted too', async () => {
    const who = await person();
    const id = newId('org');
    const { answer } = await api.db.transaction().execute(async (tx) => {
      await tx.insertInto('organisations').values({ id, name: 'new', billing_email: who.email }).execute();
      const membership = { org_id: id, user_id: who.user_id, role: 'owner' as const };
      await tx.insertInto('memberships').values(membership).execute();
      const asked = end(who);
      await untilLocksAreWaitedFor(api.db, 1);
      return { answer: asked };
    });
    assert.equal((await answer).status, 204);
    const rows = await api.db.selectFrom('organisations').select('id').where('id', '=', id).execute();
    assert.deepEqual(rows, []);
  });

  test('412 if the account changed since it was read, else 204', async () => {
    const who = await person();
    const { etag } = (await api.as(who).get('/v1/me')).headers;
    const sudo = await makeSudo(api.db, who);
    const call = (if_match: string) =>
      api.as(who).call('DELETE', '/v1/me', { headers: { ...sudo, 'if-match': if_match } });
    assertError(await call('"another"'), 'PRECONDITION_FAILED');
    assert.equal(await addressOf(who), who.email);
    assert.equal((await call(String(etag))).status, 204);
  });

  test('409 for the last owner while there are other members or instances, without a change', async () => {
    const with_member = await person();
    const member = await api.person({ org_id: with_member.org_id, role: 'member' });
    assertError(await end(with_member), 'CONFLICT', /last owner/);
    const with_instance = await person();
    await api.instance(with_instance);
    assertError(await end(with_instance), 'CONFLICT', /last owner/);
    for (const who of [with_member, with_instance]) assert.equal(await addressOf(who), who.email);
    const path = `/v1/orgs/${with_member.org_id}/members/${member.user_id}`;
    assert.equal((await api.as(with_member).patch(path, { role: 'owner' })).status, 200);
    assert.equal((await end(with_member)).status, 204, 'with a second owner it may');
  });
});
