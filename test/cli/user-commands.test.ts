/** `berth user …` on the server, on a database that an API in this process uses. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { sql } from 'kysely';
import { hashRecoveryCode } from '../../src/control-plane/identity/mfa/second-factor.ts';
import type { Mail } from '../../src/control-plane/mail/send-mails.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { mailNotificationsOfEvents } from '../support/notifications.ts';
import type { Person } from '../support/people.ts';
import { serverCliForFile } from '../support/server-cli.ts';

const api = await apiForFile();
const { berth, done, actions } = await serverCliForFile(api);
const PASSWORD = 'correct horse battery';
const person = () => api.person({ password: PASSWORD });
const login = (email: string, password: string) => api.client.post('/v1/auth/login', { email, password });
async function lockOut(email: string): Promise<void> {
  for (let at = 0; at < 5; at++) await login(email, 'not the password');
  assertError(await login(email, PASSWORD), 'ACCOUNT_LOCKED');
}

describe('berth user', () => {
  test('ls names every account and until when it is locked', async () => {
    const { email } = await person();
    const { email: locked } = await person();
    await lockOut(locked);
    const lines = (await done('user', 'ls')).split('\n');
    assert.match(lines[0] ?? '', /^E-MAIL +NAME +CREATED +LOCKED UNTIL +ID$/);
    assert.match(lines.find((line) => line.includes(email)) ?? '', / - +usr_\w+$/);
    assert.match(
      lines.find((line) => line.includes(locked)) ?? '',
      / 20\d\d-\d\d-\d\d \d\d:\d\d \(in \d+ (min|s)\) +usr_\w+$/,
    );
  });

  test('unlock ends a lock, in any case of the address, and says so in the audit log', async () => {
    const { email, org_id } = await person();
    await lockOut(email);
    assert.match(await done('user', 'unlock', email.toUpperCase()), /^Unlocked /);
    assert.equal((await login(email, PASSWORD)).status, 200);
    assert.ok((await actions(org_id)).includes('auth.unlock by operator'));
    assert.match(await done('user', 'unlock', email), /was not locked/);
    const nobody = await berth('user', 'unlock', `not.${email}`);
    assert.deepEqual([nobody.code, /there is no account not/.test(nobody.err)], [3, true], nobody.err);
  });

  test('reset-password prints a new password once; sessions and the lock end', async () => {
    const who = await person();
    await lockOut(who.email);
    const out = await done('user', 'reset-password', who.email);
    const password = /once: (\S{20})\n$/.exec(out)?.[1] ?? '';
    assert.equal((await login(who.email, password)).status, 200);
    assertError(await login(who.email, PASSWORD), 'UNAUTHENTICATED');
    assertError(await api.as(who).get('/v1/me'), 'UNAUTHENTICATED');
    assert.ok((await actions(who.org_id)).includes('auth.reset_password_on_server by operator'));
  });
});

describe('berth user reset-mfa', () => {
  const addFactors = async (who: Person, names: readonly string[]) => {
    const values = names.map((name) => {
      const id = newId('mfa');
      return { id, user_id: who.user_id, type: 'totp' as const, name, confirmed_at: new Date() };
    });
    await api.db.insertInto('mfa_factors').values(values).execute();
    const code_hash = hashRecoveryCode('aaaaa-aaaaa-aaaaa-aaaaa');
    await api.db.insertInto('recovery_codes').values({ user_id: who.user_id, code_hash }).execute();
  };
  const leftOf = async ({ user_id }: Person) => {
    const count = async (table: 'mfa_factors' | 'recovery_codes') =>
      (await api.db.selectFrom(table).select('user_id').where('user_id', '=', user_id).execute()).length;
    return [await count('mfa_factors'), await count('recovery_codes')];
  };

  test('removes every factor and recovery code: the password alone logs in, the account and the audit log are told', async () => {
    const [who, other] = [await person(), await person()];
    await addFactors(who, ['phone', 'stranger']);
    await addFactors(other, ['phone']);
    assertError(await login(who.email, PASSWORD), 'MFA_REQUIRED');
    const said = await done('user', 'reset-mfa', who.email.toUpperCase());
    assert.match(said, /no longer has a second factor; 2 were removed/);
    assert.deepEqual(
      [await leftOf(who), await leftOf(other)],
      [
        [0, 0],
        [1, 1],
      ],
    );
    assert.equal((await login(who.email, PASSWORD)).status, 200);
    assert.ok((await actions(who.org_id)).includes('auth.reset_mfa_on_server by operator'));
    const mails: Mail[] = [];
    await mailNotificationsOfEvents(api.db, async (mail) => void mails.push(mail));
    const told = mails.filter(
      ({ to, subject }) => to === who.email && subject.includes('factor was removed'),
    );
    assert.equal(told.length, 2);
    for (const { text } of told) assert.match(text, /was removed by the operator of the server/);
  });

  test('says that there is no factor, or no such account, and then changes nothing', async () => {
    const { email, org_id } = await person();
    assert.match(await done('user', 'reset-mfa', email), /has no second factor\./);
    assert.deepEqual(await actions(org_id), []);
    const nobody = await berth('user', 'reset-mfa', `not.${email}`);
    assert.deepEqual([nobody.code, /there is no account not/.test(nobody.err)], [3, true], nobody.err);
  });
});

describe('berth user, where the audit log cannot be written', () => {
  const constraint = sql`alter table audit_log add constraint unwritable
    check (action not in ('auth.unlock', 'auth.reset_password_on_server', 'auth.reset_mfa_on_server')) not valid`;
  before(() => constraint.execute(api.db));
  after(() => sql`alter table audit_log drop constraint unwritable`.execute(api.db));

  test('reset-password leaves the password, the sessions and the lock as they were', async () => {
    const [who, locked] = [await person(), await person()];
    assert.equal((await berth('user', 'reset-password', who.email)).code, 1);
    assert.equal((await api.as(who).get('/v1/me')).status, 200);
    assert.equal((await login(who.email, PASSWORD)).status, 200);
    await lockOut(locked.email);
    assert.equal((await berth('user', 'reset-password', locked.email)).code, 1);
    assertError(await login(locked.email, PASSWORD), 'ACCOUNT_LOCKED');
  });

  test('reset-mfa leaves the factors', async () => {
    const { user_id, email } = await person();
    const factor = {
      id: newId('mfa'),
      user_id,
      type: 'totp',
      name: 'phone',
      confirmed_at: new Date(),
    } as const;
    await api.db.insertInto('mfa_factors').values(factor).execute();
    assert.equal((await berth('user', 'reset-mfa', email)).code, 1);
    assertError(await login(email, PASSWORD), 'MFA_REQUIRED');
  });

  test('unlock leaves the lock', async () => {
    const { email } = await person();
    await lockOut(email);
    assert.equal((await berth('user', 'unlock', email)).code, 1);
    assertError(await login(email, PASSWORD), 'ACCOUNT_LOCKED');
  });
});
