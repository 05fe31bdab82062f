/** Changing the password, and getting a new one by mail. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { changePassword, prepareNewPassword } from '../../src/control-plane/identity/accounts.ts';
import { loginByPassword as loginWith } from '../../src/control-plane/identity/login.ts';
import type { Principal } from '../../src/control-plane/identity/principal.ts';
import { MAIL_PREFIX, newToken } from '../../src/control-plane/identity/tokens.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { makeMailFolder } from '../support/mail-folder.ts';
import { mailNotificationsOfEvents } from '../support/notifications.ts';
import { makeSession, type Person } from '../support/people.ts';
import { until } from '../support/waiting.ts';

const mail = await makeMailFolder();
const api = await apiForFile();
mail.collectFrom({ db: api.db, mailbox: api.context.mailbox });
after(() => mail.close());
const OLD = 'correct horse battery';
const NEW = 'another good password';
const person = () => api.person({ password: OLD });

const login = (email: string, password: string) => api.client.post('/v1/auth/login', { email, password });
const change = (who: Person, body: unknown = { current_password: OLD, new_password: NEW }) =>
  api.as(who).post('/v1/auth/password', body);
const ask = (email: string) => api.client.post('/v1/auth/password-reset', { email });
const confirm = (token: string, new_password = NEW) =>
  api.client.post('/v1/auth/password-reset/confirm', { token, new_password });

async function lockOut(email: string): Promise<void> {
  for (let at = 0; at < 5; at++) await login(email, 'not the password');
  assertError(await login(email, OLD), 'ACCOUNT_LOCKED');
}

describe('202', () => {
  test('a reset request: the same answer with and without an account, and a mail only with one', async () => {
    const { email } = await person();
    const nobody = `${newId('usr')}@example.org`;
    const answers = [await ask(nobody), await ask(email)];
    assert.deepEqual(
      answers.map(({ status, text }) => [status, text]),
      [
        [202, ''],
        [202, ''],
      ],
    );
    await mail.token(email);
    assert.deepEqual(await mail.to(nobody), []);
  });

  test('a sixth reset within 15 minutes sends no mail, and the fifth stays valid', async () => {
    const { email } = await person();
    for (let sent = 1; sent <= 5; sent += 1) {
      assert.equal((await ask(email)).status, 202);
      await mail.token(email, sent - 1);
    }
    assert.equal((await ask(email.toUpperCase())).status, 202);
    const token = await mail.token(email, 4);
    const reset = await confirm(token);
    assert.equal(reset.status, 204, reset.text);
    assert.equal((await mail.to(email)).filter((text) => text.includes('berth_mail_')).length, 5);
  });

  test('the mail is readable by its owner only, and the database does not have its token', async () => {
    const { email } = await person();
    await ask(email);
    const token = await mail.token(email);
    assert.ok((await mail.modes()).every((mode) => mode === 0o600));
    const rows = await api.db.selectFrom('mail_tokens').selectAll().execute();
    assert.ok(!JSON.stringify(rows).includes(token));
    assert.ok(rows.every((row) => row.token_hash.length === 32));
  });
});

describe('204', () => {
  test('a change: the new password works, the old one does not, other sessions end, this one stays', async () => {
    const who = await person();
    const other = await makeSession(api.db, who.user_id);
    const answer = await change(who);
    assert.deepEqual([answer.status, answer.text], [204, '']);
    assert.equal((await api.as(who).get('/v1/me')).status, 200);
    assertError(await api.as(other.session).get('/v1/me'), 'UNAUTHENTICATED');
    assertError(await login(who.email, OLD), 'UNAUTHENTICATED');
    assert.equal((await login(who.email, NEW)).status, 200);
    await mailNotificationsOfEvents(api.db, mail.deliver);
    const changed = (text: string) => /^Subject: Your password was changed$/m.test(text);
    assert.equal((await mail.to(who.email)).filter(changed).length, 1);
  });

  test('a reset: the new password works, the lock ends, and every session ends', async () => {
    const who = await person();
    await lockOut(who.email);
    await ask(who.email.toUpperCase());
    assert.equal((await confirm(await mail.token(who.email))).status, 204);
    assertError(await api.as(who).get('/v1/me'), 'UNAUTHENTICATED');
    assert.equal((await login(who.email, NEW)).status, 200);
  });
});

test('a login whose password changes meanwhile opens no session', async () => {
  const who = await person();
  const changed = async () => {
    assert.equal((await change(who)).status, 204);
    return 'not_needed' as const;
  };
  const { db, context } = api;
  const parts = { db, audit: context.audit, quotas: context.quotas, verifySecondFactor: changed };
  const request = { email: who.email, password: OLD, ip: '127.0.0.1', user_agent: '', request_id: 'none' };
  await assert.rejects(loginWith(parts, request), { code: 'UNAUTHENTICATED' });
  const { rows } = await sql`select id from sessions where user_id = ${who.user_id}`.execute(api.db);
  assert.equal(rows.length, 1);
});

test('a change during the confirmation of a reset changes nothing: the password of the reset works', async () => {
  const who = await person();
  const principal: Principal = {
    credential: { kind: 'session', id: who.session_id, user_id: who.user_id, email_confirmed: true },
    org_id: who.org_id,
    role: 'owner',
    scopes: new Set(),
  };
  const request = { current_password: OLD, new_password: 'what the thief wants' };
  const prepared = await prepareNewPassword(api.db, principal, request, '127.0.0.1');
  await ask(who.email);
  assert.equal((await confirm(await mail.token(who.email))).status, 204);
  const change = transaction(api.db, (tx) => changePassword(tx, principal, prepared));
  await assert.rejects(change, { code: 'UNAUTHENTICATED' });
  assert.equal((await login(who.email, NEW)).status, 200);
});

describe('400', () => {
  test('a reset token works once, also of ten concurrent uses', async () => {
    const { email } = await person();
    await ask(email);
    const token = await mail.token(email);
    const answers = await Promise.all(Array.from({ length: 10 }, () => confirm(token)));
    assert.equal(answers.filter(({ status }) => status === 204).length, 1);
    for (const answer of answers.filter(({ status }) => status !== 204))
      assertError(answer, 'INVALID_REQUEST');
  });

  test('a reset token is valid for an hour', async () => {
    const { email, user_id } = await person();
    await ask(email);
    const token = await mail.token(email);
    const row = await api.db
      .selectFrom('mail_tokens')
      .select('expires_at')
      .where('user_id', '=', user_id)
      .executeTakeFirstOrThrow();
    const left_ms = row.expires_at.getTime() - Date.now();
    assert.ok(left_ms > 3_570_000 && left_ms <= 3_601_000, String(left_ms));
    await api.db
      .updateTable('mail_tokens')
      .set({ expires_at: new Date(Date.now() - 1_000) })
      .where('user_id', '=', user_id)
      .execute();
    assertError(await confirm(token), 'INVALID_REQUEST', /token/);
    assert.equal((await login(email, OLD)).status, 200);
  });

  test('a change invalidates mailed tokens: of a reset, and of a change of address', async () => {
    const who = await person();
    const address = `${newId('usr')}@example.org`;
    await ask(who.email);
    await api.as(who).put('/v1/me/email', { email: address, password: OLD });
    const [reset, moved] = [await mail.token(who.email), await mail.token(address)];
    assert.equal((await change(who)).status, 204);
    assertError(await confirm(reset), 'INVALID_REQUEST', /token/);
    const answer = await api.as(who).post('/v1/me/email/confirm', { token: moved });
    assertError(answer, 'INVALID_REQUEST', /token/);
  });

  test('a second token invalidates the first', async () => {
    const { email } = await person();
    await ask(email);
    const first = await mail.token(email);
    await ask(email);
    const second = await mail.token(email, 1);
    assertError(await confirm(first), 'INVALID_REQUEST');
    assert.equal((await confirm(second)).status, 204);
  });

  test('an unknown token, one of another kind, or a password that is too short, which keeps the token valid', async () => {
    const who = await person();
    assertError(await confirm(newToken(MAIL_PREFIX)), 'INVALID_REQUEST');
    assertError(await confirm('x'), 'INVALID_REQUEST');
    const address = `${newId('usr')}@example.org`;
    assert.equal((await api.as(who).put('/v1/me/email', { email: address, password: OLD })).status, 202);
    assertError(await confirm(await mail.token(address)), 'INVALID_REQUEST');
    await ask(who.email);
    const token = await until('the reset', async () => {
      const text = (await mail.to(who.email)).find((each) => each.includes('Reset your Berth password'));
      return /berth_mail_\w+/.exec(text ?? '')?.[0];
    });
    assertError(await confirm(token, 'x'.repeat(11)), 'INVALID_REQUEST');
    assert.equal((await confirm(token)).status, 204);
  });

  test('a change to a guessable password changes nothing, and counts as no failure', async () => {
    const who = await person();
    for (const new_password of ['Password1234', who.email, `${who.email.split('@')[0]}-24`]) {
      for (let times = 0; times < 6; times++) {
        const answer = await change(who, { current_password: 'not the password', new_password });
        assertError(answer, 'INVALID_REQUEST');
        assert.match(answer.text, /"field":"new_password","issue":"is (one of the most used|made of)/);
      }
    }
    assert.equal((await login(who.email, OLD)).status, 200);
  });

  test('a reset to a guessable password keeps the token valid', async () => {
    const who = await person();
    await ask(who.email);
    const token = await mail.token(who.email);
    for (const password of ['Password1234', who.email]) {
      assertError(await confirm(token, password), 'INVALID_REQUEST', /new_password/);
    }
    assert.equal((await login(who.email, OLD)).status, 200);
    assert.equal((await confirm(token)).status, 204);
  });

  test('a change to a password of 11 or 257 characters, or without the current one', async () => {
    const who = await person();
    for (const body of [
      { current_password: OLD, new_password: 'x'.repeat(11) },
      { current_password: OLD, new_password: 'x'.repeat(257) },
      { new_password: NEW },
      { current_password: OLD },
      { current_password: OLD, new_password: NEW, sessions: 'keep' },
    ]) {
      assertError(await change(who, body), 'INVALID_REQUEST');
    }
    assert.equal((await login(who.email, OLD)).status, 200);
  });
});

describe('401', () => {
  test('a change with a wrong current password changes and ends nothing', async () => {
    const who = await person();
    const other = await makeSession(api.db, who.user_id);
    const body = { current_password: 'not the password', new_password: NEW };
    assertError(await change(who, body), 'UNAUTHENTICATED');
    assert.equal((await api.as(other.session).get('/v1/me')).status, 200);
    assert.equal((await login(who.email, OLD)).status, 200);
  });
});

describe('423', () => {
  test('five wrong current passwords lock like five failed logins', async () => {
    const who = await person();
    const body = { current_password: 'not the password', new_password: NEW };
    for (let at = 0; at < 4; at++) assertError(await change(who, body), 'UNAUTHENTICATED');
    assertError(await change(who, body), 'ACCOUNT_LOCKED');
    assertError(await login(who.email, OLD), 'ACCOUNT_LOCKED');
  });
});
