/** The lockout, shared by login, sudo and every place that takes a password, by address whether or not it exists. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { lockSeconds } from '../../src/control-plane/identity/lockout.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import type { Answer } from '../support/client.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { passwordVerificationsDuring } from '../support/password-verifications.ts';
import type { Person } from '../support/people.ts';

const api = await apiForFile();
const PASSWORD = 'correct horse battery';
const WRONG = 'not the password';
const person = () => api.person({ password: PASSWORD });
const unknown = () => `${newId('usr')}@example.org`;

const login = (email: string, password: string) => api.client.post('/v1/auth/login', { email, password });
const sudo = (who: Person, password: string) => api.as(who).post('/v1/auth/sudo', { password });
const lock = (email: string) =>
  api.db.selectFrom('lockouts').selectAll().where('email_key', '=', email.toLowerCase()).executeTakeFirst();

async function fail(times: number, attempt: () => Promise<Answer<unknown>>): Promise<void> {
  for (let at = 0; at < times; at++) assertError(await attempt(), 'UNAUTHENTICATED');
}
function assertLocked(answer: Answer<unknown>, seconds: number): void {
  assertError(answer, 'ACCOUNT_LOCKED');
  const wait = Number(answer.headers['retry-after']);
  assert.ok(wait <= seconds && wait > seconds - 30, `Retry-After ${wait}, not about ${seconds}`);
}
/** As if the lock had been a while ago. */
async function letLockEnd(email: string): Promise<void> {
  await api.db
    .updateTable('lockouts')
    .set({ locked_until: new Date(Date.now() - 1_000) })
    .where('email_key', '=', email)
    .execute();
}

describe('401', () => {
  test('failures 1 to 4, and a success resets the count', async () => {
    const { email } = await person();
    await fail(4, () => login(email, WRONG));
    assert.equal((await login(email, PASSWORD)).status, 200);
    assert.equal(await lock(email), undefined);
    await fail(4, () => login(email, WRONG));
  });

  test('an unknown address and a wrong password: one verification each, and the same answer', async () => {
    const { email } = await person();
    const answers: Answer<unknown>[] = [];
    for (const address of [email, unknown()]) {
      const verifies = await passwordVerificationsDuring(async () => {
        answers.push(await login(address, WRONG));
      });
      assert.equal(verifies, 1, address);
    }
    const [known, other] = answers;
    assert.ok(known && other);
    assert.deepEqual(withoutRequestId(known), withoutRequestId(other));
  });
});

describe('a lock raises a notification', () => {
  for (const [where, wrong] of Object.entries<(who: Person) => Promise<Answer<unknown>>>({
    login: (who) => login(who.email, WRONG),
    sudo: (who) => sudo(who, WRONG),
    'a change of the password': (who) =>
      api
        .as(who)
        .post('/v1/auth/password', { current_password: WRONG, new_password: 'another good password' }),
    'a change of the address': (who) =>
      api.as(who).put('/v1/me/email', { email: unknown(), password: WRONG }),
  })) {
    test(`once, after failures at ${where}`, async () => {
      const who = await person();
      // What the notification, and its mail, come of.
      const told = async () => {
        const events = api.db.selectFrom('events').select('data').where('user_id', '=', who.user_id);
        return (await events.where('type', '=', 'account.locked').execute()).length;
      };
      await fail(4, () => wrong(who));
      assert.equal(await told(), 0);
      assertLocked(await wrong(who), 900);
      assertLocked(await wrong(who), 900);
      assert.equal(await told(), 1);
    });
  }
});

describe('423', () => {
  test('the 5th failure locks for 15 minutes, also for the right password, at login and at sudo', async () => {
    const who = await person();
    await fail(4, () => login(who.email, WRONG));
    assertLocked(await login(who.email, WRONG), 900);
    const verifies = await passwordVerificationsDuring(async () => {
      assertLocked(await login(who.email, PASSWORD), 900);
      assertLocked(await login(who.email.toUpperCase(), PASSWORD), 900);
      assertLocked(await sudo(who, PASSWORD), 900);
      const change = { current_password: PASSWORD, new_password: 'another good password' };
      assertLocked(await api.as(who).post('/v1/auth/password', change), 900);
      assertLocked(await api.as(who).put('/v1/me/email', { email: unknown(), password: PASSWORD }), 900);
    });
    assert.equal(verifies, 0, 'while locked no password is looked at');
    assert.equal((await api.as(who).get('/v1/me')).status, 200, 'sessions that are open stay so');
  });

  test('failures at sudo and at login are counted together', async () => {
    const who = await person();
    await fail(2, () => login(who.email, WRONG));
    await fail(2, () => sudo(who, WRONG));
    assertLocked(await sudo(who, WRONG), 900);
    assertLocked(await login(who.email, PASSWORD), 900);
  });

  test('an address without an account locks just the same, and no other with it', async () => {
    const email = unknown();
    await fail(4, () => login(email, WRONG));
    assertLocked(await login(email, WRONG), 900);
    const { email: other } = await person();
    assert.equal((await login(other, PASSWORD)).status, 200);
  });

  test('attempts while locked do not count', async () => {
    const { email } = await person();
    await fail(4, () => login(email, WRONG));
    assertLocked(await login(email, WRONG), 900);
    const before = await lock(email);
    for (let at = 0; at < 12; at++) assertError(await login(email, WRONG), 'ACCOUNT_LOCKED');
    const after = await lock(email);
    assert.deepEqual(
      [after?.failures, after?.locks, after?.locked_until],
      [before?.failures, before?.locks, before?.locked_until],
    );
  });

  test('each further lock is twice as long, up to 24 hours, and a success resets them', async () => {
    assert.deepEqual(
      Array.from({ length: 9 }, (_, n) => lockSeconds(n + 1) / 60),
      [15, 30, 60, 120, 240, 480, 960, 1440, 1440],
    );
    const { email } = await person();
    for (const seconds of [900, 1_800, 3_600]) {
      await fail(4, () => login(email, WRONG));
      assertLocked(await login(email, WRONG), seconds);
      await letLockEnd(email);
    }
    assert.equal((await login(email, PASSWORD)).status, 200);
    await fail(4, () => login(email, WRONG));
    assertLocked(await login(email, WRONG), 900);
  });

  test('of 20 concurrent wrong passwords at most 5 are verified', async () => {
    for (const email of [(await person()).email, unknown()]) {
      const answers: Answer<unknown>[] = [];
      const verifies = await passwordVerificationsDuring(async () => {
        answers.push(...(await Promise.all(Array.from({ length: 20 }, () => login(email, WRONG)))));
      });
      assert.ok(verifies <= 5, `${verifies} were verified`);
      assert.equal(answers.filter(({ status }) => status === 401).length, 4);
      assert.equal(answers.filter(({ status }) => status === 423).length, 16);
      assertLocked(await login(email, PASSWORD), 900);
    }
  });

  test('of 20 concurrent sudo passwords, too', async () => {
    const who = await person();
    const verifies = await passwordVerificationsDuring(() =>
      Promise.all(Array.from({ length: 20 }, () => sudo(who, WRONG))),
    );
    assert.ok(verifies <= 5, `${verifies} were verified`);
  });

  test('of many concurrent right passwords none is refused, at login and at sudo', async () => {
    const who = await person();
    const answers = await Promise.all([
      ...Array.from({ length: 12 }, () => login(who.email, PASSWORD)),
      ...Array.from({ length: 3 }, () => sudo(who, PASSWORD)),
    ]);
    assert.deepEqual([...new Set(answers.map(({ status }) => status))], [200]);
  });

  test('attempts without a result lock an address for a minute only', async () => {
    const { email } = await person();
    const undecided = { email_key: email, failures: 6, locks: 0, locked_until: null };
    await api.db.insertInto('lockouts').values(undecided).execute();
    assertError(await login(email, PASSWORD), 'ACCOUNT_LOCKED');
    await api.db
      .updateTable('lockouts')
      .set({ updated_at: new Date(Date.now() - 61_000) })
      .where('email_key', '=', email)
      .execute();
    assert.equal((await login(email, PASSWORD)).status, 200);
  });
});

describe('with a second factor', () => {
  test('a missing factor is not a failure, also concurrently; a wrong one is', async () => {
    const who = await person();
    await api.db
      .insertInto('mfa_factors')
      .values({
        id: newId('mfa'),
        user_id: who.user_id,
        type: 'totp',
        name: 'phone',
        confirmed_at: new Date(),
      })
      .execute();
    const together = await Promise.all(Array.from({ length: 20 }, () => login(who.email, PASSWORD)));
    assert.ok(together.every(({ status }) => status === 401 || status === 423));
    for (let at = 0; at < 8; at++) assertError(await login(who.email, PASSWORD), 'MFA_REQUIRED');
    assert.equal((await lock(who.email))?.failures, 0);
    const wrong = (recovery_code: string) =>
      api.client.post('/v1/auth/login', { email: who.email, password: PASSWORD, recovery_code });
    for (let at = 0; at < 4; at++) assertError(await wrong('aaaaa-aaaaa-aaaaa-aaaaa'), 'MFA_REQUIRED');
    assertLocked(await wrong('aaaaa-aaaaa-aaaaa-aaaaa'), 900);
  });
});
