/** An address gets at most five mails of a kind in a quarter of an hour, counted over all senders. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { appendPrivate } from '../../src/control-plane/events/append.ts';
import type { SentMail } from '../../src/control-plane/mail/send-mails.ts';
import { countMail, MAX_SENT, WINDOW_S } from '../../src/control-plane/mail/store.ts';
import { sweep } from '../../src/control-plane/sweep.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Answer } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { appendNotifyingEvent, mailNotificationsOfEvents } from '../support/notifications.ts';
import { makeSudo, type Person } from '../support/people.ts';

const api = await apiForFile({ context: { has_smtp: true, signups: 'open' } });
const { db } = api;
const PASSWORD = 'correct horse battery';
const newAddress = () => `${newId('usr')}@example.org`;
const mailsTo = (email: string) => api.mails.filter(({ to }) => to.toLowerCase() === email.toLowerCase());

const invitations = (who: Person) => `/v1/orgs/${who.org_id}/invitations`;
const invite = (who: Person, email: string) =>
  api.as(who).post<{ id: string }>(invitations(who), { email, role: 'member' });
const setBilling = async (who: Person, email: string) =>
  api.as(who).call<{ billing_email: string }>('PUT', `/v1/orgs/${who.org_id}/billing-email`, {
    json: { email },
    headers: await makeSudo(db, who),
  });

function assertLimited(answer: Answer<unknown>): void {
  assertError(answer, 'RATE_LIMITED', /Nothing was changed/);
  const after_s = Number(answer.headers['retry-after']);
  assert.ok(after_s > 0 && after_s <= 900, String(after_s));
}

/** Moves all counted mails back in time. */
async function letPass(minutes: number): Promise<void> {
  await sql`update mail_counts set sent_at = array(
    select t - make_interval(mins => ${minutes}) from unnest(sent_at) as t order by t)`.execute(db);
}

describe('429', () => {
  test('an organisation that sends to ever more addresses', async () => {
    const owner = await api.person();
    const sent = {
      address: owner.org_id,
      kind: 'sent',
      sent_at: sql<Date[]>`array_fill(now(), array[${MAX_SENT - 1}::int])`,
    };
    await db.insertInto('mail_counts').values(sent).execute();
    assert.equal((await invite(owner, newAddress())).status, 201);
    assertLimited(await invite(owner, newAddress()));
    assertLimited(await setBilling(owner, newAddress()));
    assert.equal((await invite(await api.person(), newAddress())).status, 201, 'another has its own count');
    await letPass(WINDOW_S / 60);
    assert.equal((await invite(owner, newAddress())).status, 201);
  });

  test('an invitation that is created and withdrawn in a loop, by one organisation or by many', async () => {
    const email = newAddress();
    const owner = await api.person();
    for (let sent = 0; sent < 4; sent += 1) {
      const made = await invite(owner, email);
      assert.equal(made.status, 201, made.text);
      assert.equal((await api.as(owner).delete(`${invitations(owner)}/${made.body.id}`)).status, 204);
    }
    assert.equal((await invite(await api.person(), email.toUpperCase())).status, 201);
    assertLimited(await invite(owner, email));
    assertLimited(await invite(await api.person(), email));
    assert.equal(mailsTo(email).length, 5);
    const open = await api.as(owner).get<{ data: unknown[] }>(invitations(owner));
    assert.deepEqual(open.body.data, [], 'nothing was changed');
    assert.equal((await invite(owner, newAddress())).status, 201, 'another address has its own count');
  });

  test('a billing address that changes back and forth: a change without its mail is refused', async () => {
    const [owner, rival] = [await api.person(), await api.person()];
    const stranger = newAddress();
    const addresses = [stranger, newAddress(), stranger, newAddress()];
    for (const email of addresses) assert.equal((await setBilling(owner, email)).status, 200);
    assert.equal((await setBilling(rival, stranger)).status, 200);
    assert.equal(mailsTo(stranger).length, 5);
    assertLimited(await setBilling(owner, stranger));
    assertLimited(await setBilling(rival, newAddress()));
    assert.equal(mailsTo(stranger).length, 5);
    const { body } = await api.as(rival).get<{ billing_email: string }>(`/v1/orgs/${rival.org_id}`);
    assert.equal(body.billing_email, stranger);
  });

  test('new addresses of accounts, and accounts that are created and deleted in a loop', async () => {
    const email = newAddress();
    for (let sent = 0; sent < 3; sent += 1) {
      const who = await api.person({ password: PASSWORD });
      assert.equal((await api.as(who).put('/v1/me/email', { email, password: PASSWORD })).status, 202);
    }
    const register = () =>
      api.client.post<{ user: { id: string }; session_token: string }>('/v1/auth/register', {
        email,
        password: PASSWORD,
      });
    for (let sent = 0; sent < 2; sent += 1) {
      const made = await register();
      assert.equal(made.status, 201, made.text);
      await db.deleteFrom('users').where('email', '=', email).execute();
    }
    assertLimited(await register());
    assert.equal(mailsTo(email).length, 5);
    const rows = await db.selectFrom('users').select('id').where('email', '=', email).execute();
    assert.deepEqual(rows, [], 'no account was made');
  });

  test('of thirty concurrent requests five send a mail', async () => {
    const email = newAddress();
    const owners = await Promise.all(Array.from({ length: 30 }, () => api.person()));
    const answers = await Promise.all(owners.map((owner) => invite(owner, email)));
    assert.equal(answers.filter(({ status }) => status === 201).length, 5);
    for (const answer of answers.filter(({ status }) => status !== 201)) assertLimited(answer);
    assert.equal(mailsTo(email).length, 5);
  });
});

test('Retry-After is never longer than the window, also for a transaction that began before the counted mails', async () => {
  const email = newAddress();
  const counted = await transaction(db, async (tx) => {
    await sql`select now()`.execute(tx);
    for (let sent = 0; sent < 5; sent += 1) await countMail(db, email, 'invitation');
    return countMail(tx, email, 'invitation');
  });
  assert.ok('free_in_s' in counted && counted.free_in_s <= WINDOW_S, JSON.stringify(counted));
});

test('a mail counts for 15 minutes', async () => {
  const email = newAddress();
  const owner = await api.person();
  const inviteAgain = async () => {
    const made = await invite(owner, email);
    if (made.status === 201) await api.as(owner).delete(`${invitations(owner)}/${made.body.id}`);
    return made;
  };
  for (let sent = 0; sent < 2; sent += 1) await inviteAgain();
  await letPass(10);
  for (let sent = 0; sent < 3; sent += 1) assert.equal((await inviteAgain()).status, 201);
  const limited = await inviteAgain();
  assertLimited(limited);
  assert.ok(Number(limited.headers['retry-after']) <= 300, 'until the first two are past');
  await letPass(5);
  assert.equal((await inviteAgain()).status, 201);
  await letPass(15);
  await sweep(db);
  const { rows } = await sql`select from mail_counts`.execute(db);
  assert.deepEqual(rows, [], 'nothing is kept of what does not count');
});

describe('notifications', () => {
  const sent: SentMail[] = [];
  const keep = async (mail: SentMail) => void sent.push(mail);
  const to = (who: Person) => sent.filter((mail) => mail.to === who.email);
  const letWaitsEnd = async () => {
    await sql`update notifications set mail_after = now() where mail_after > now()`.execute(db);
    await sql`update mails set due_at = now()`.execute(db);
  };
  const waiting = (who: Person) =>
    db
      .selectFrom('notifications')
      .select('id')
      .where('recipient', '=', who.user_id)
      .where('mail_after', 'is not', null)
      .execute();

  test('beyond five of a kind the others wait, and are sent as one mail', async () => {
    const who = await api.person();
    for (let told = 0; told < 8; told += 1) {
      await appendNotifyingEvent(db, who);
      await mailNotificationsOfEvents(db, keep);
    }
    assert.equal(to(who).length, 5);
    await letWaitsEnd();
    await mailNotificationsOfEvents(db, keep);
    assert.equal(to(who).length, 5, 'not before the window is past');
    await letPass(15);
    await letWaitsEnd();
    await mailNotificationsOfEvents(db, keep);
    assert.match(to(who).at(-1)?.subject ?? '', /, and 2 more$/);
    assert.deepEqual([to(who).length, await waiting(who)], [6, []]);
  });

  test('beyond five, critical kinds of security wait too; another kind is sent at once', async () => {
    const who = await api.person();
    const { user_id } = who;
    const happened = (type: 'mfa.removed' | 'password.changed') => {
      const data = { factor: { id: newId('mfa'), type: 'totp', name: 'phone' }, how: 'changed' };
      return transaction(db, (tx) =>
        appendPrivate(tx, { type, org_id: null, user_id, data, actor: user_id }),
      );
    };
    for (let told = 0; told < 12; told += 1) await happened('mfa.removed');
    await mailNotificationsOfEvents(db, keep);
    assert.equal(to(who).length, 5);
    await happened('password.changed');
    await mailNotificationsOfEvents(db, keep);
    assert.equal(to(who).at(-1)?.subject, 'Your password was changed');
    await letPass(15);
    await letWaitsEnd();
    await mailNotificationsOfEvents(db, keep);
    assert.match(to(who).at(-1)?.subject ?? '', /^A second factor was removed .*, and 6 more$/);
    assert.deepEqual([to(who).length, await waiting(who)], [7, []]);
  });

  test('retries of a mail do not count; a late mail counts from its sending', async () => {
    const who = await api.person();
    const away = async () => {
      throw new Error('connection refused');
    };
    await appendNotifyingEvent(db, who);
    for (let tried = 0; tried < 7; tried += 1) {
      await mailNotificationsOfEvents(db, away);
      await letWaitsEnd();
    }
    await letPass(15);
    await mailNotificationsOfEvents(db, keep);
    assert.equal(to(who).length, 1);
    for (let told = 0; told < 5; told += 1) {
      await appendNotifyingEvent(db, who);
      await mailNotificationsOfEvents(db, keep);
    }
    assert.equal(to(who).length, 5);
  });
});
