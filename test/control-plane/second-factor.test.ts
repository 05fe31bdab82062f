/** Codes and recovery codes at login: what is right, and that it is right once. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { type GivenFactor, verifySecondFactor } from '../../src/control-plane/identity/mfa/second-factor.ts';
import { AppError, errnoOf } from '../../src/shared/errors.ts';
import { mfaAppForFile, PASSWORD, type Person } from '../support/mfa-app.ts';
import { totpCode } from '../support/totp-code.ts';

const mfa = await mfaAppForFile();
const run = promisify(execFile);

/** With a confirmed TOTP factor; its code of now is used up by that. */
async function personWithTotp() {
  const ann = await mfa.person();
  const { body: factor } = await mfa.callSudo('POST', '/v1/me/mfa/factors', {
    as: ann,
    body: { type: 'totp', name: 'phone' },
  });
  const code = totpCode(factor.secret, mfa.clock.now_s);
  const { body } = await mfa.call('POST', `/v1/me/mfa/factors/${factor.id}/verify`, {
    as: ann,
    body: { code },
  });
  const secret: string = factor.secret;
  return {
    ann,
    secret,
    recovery_codes: body.recovery_codes as string[],
    code: (s: number) => totpCode(secret, mfa.clock.now_s + s),
  };
}

function verify({ user_id }: Person, given: GivenFactor) {
  return verifySecondFactor(mfa.context, user_id, given);
}

test('codes equal those of oathtool', async (t) => {
  const probe = await run('oathtool', ['--version']).catch((error: unknown) => error);
  if (errnoOf(probe) === 'ENOENT') return t.skip('oathtool is not installed: apt-get install oathtool');
  const { ann, secret } = await personWithTotp();
  const oathtool = async (s: number) => {
    const { stdout } = await run('oathtool', [
      '--totp=sha1',
      '--base32',
      '--digits=6',
      `--now=@${mfa.clock.now_s + s}`,
      secret,
    ]);
    return stdout.trim();
  };
  assert.equal(await verify(ann, { totp_code: await oathtool(60) }), 'wrong');
  assert.equal(await verify(ann, { totp_code: await oathtool(30) }), 'right');
  mfa.clock.now_s += 90;
  assert.equal(await verify(ann, { totp_code: await oathtool(0) }), 'right');
});

test('a second factor is required exactly if one is confirmed', async () => {
  const ann = await mfa.person();
  const { body } = await mfa.callSudo('POST', '/v1/me/mfa/factors', {
    as: ann,
    body: { type: 'totp', name: 'phone' },
  });
  assert.equal(await verify(ann, {}), 'not_needed');
  assert.equal(await verify(ann, { totp_code: totpCode(body.secret, mfa.clock.now_s) }), 'not_needed');
  assert.equal(await verify((await personWithTotp()).ann, {}), 'missing');
});

test('a code works once; neither the code that confirmed the factor nor an earlier one works', async () => {
  const { ann, code } = await personWithTotp();
  assert.equal(await verify(ann, { totp_code: code(0) }), 'wrong', 'it confirmed the factor');
  assert.equal(await verify(ann, { totp_code: code(-30) }), 'wrong');
  assert.equal(await verify(ann, { totp_code: code(30) }), 'right');
  assert.equal(await verify(ann, { totp_code: code(30) }), 'wrong');
});

test('of ten concurrent uses of one code exactly one succeeds', async () => {
  const { ann, code } = await personWithTotp();
  const verdicts = await Promise.all(Array.from({ length: 10 }, () => verify(ann, { totp_code: code(30) })));
  assert.equal(verdicts.filter((verdict) => verdict === 'right').length, 1);
  assert.equal(verdicts.filter((verdict) => verdict === 'wrong').length, 9);
});

test('each recovery code works once, also of ten concurrent uses, however it is typed', async () => {
  const { ann, recovery_codes } = await personWithTotp();
  const [first = '', second = '', third = ''] = recovery_codes;
  assert.equal(await verify(ann, { recovery_code: first }), 'right');
  assert.equal(await verify(ann, { recovery_code: first }), 'wrong');
  const verdicts = await Promise.all(
    Array.from({ length: 10 }, () => verify(ann, { recovery_code: second })),
  );
  assert.equal(verdicts.filter((verdict) => verdict === 'right').length, 1);
  assert.equal(await verify(ann, { recovery_code: third.toUpperCase().replaceAll('-', ' ') }), 'right');
  assert.equal(await verify(ann, { recovery_code: 'aaaa-aaaa-aaaa-aaaa' }), 'wrong');
  const other = await personWithTotp();
  assert.equal(await verify(other.ann, { recovery_code: recovery_codes[4] }), 'wrong', "another account's");
  for (const code of recovery_codes.slice(3))
    assert.equal(await verify(ann, { recovery_code: code }), 'right');
});

test('the codes of two apps work independently', async () => {
  const { ann, code } = await personWithTotp();
  const { body: tablet } = await mfa.callSudo('POST', '/v1/me/mfa/factors', {
    as: ann,
    body: { type: 'totp', name: 'tablet' },
  });
  const own = (s: number) => totpCode(tablet.secret, mfa.clock.now_s + s);
  await mfa.call('POST', `/v1/me/mfa/factors/${tablet.id}/verify`, { as: ann, body: { code: own(-30) } });
  assert.equal(await verify(ann, { totp_code: code(30) }), 'right');
  assert.equal(await verify(ann, { totp_code: own(0) }), 'right');
  assert.equal(await verify(ann, { totp_code: own(30) }), 'right');
  assert.equal(await verify(ann, { totp_code: own(0) }), 'wrong');
});

test('two kinds of factor in one request are refused before either is used', async () => {
  const { ann, code, recovery_codes } = await personWithTotp();
  const both = { totp_code: code(30), recovery_code: recovery_codes[0] };
  await assert.rejects(
    verify(ann, both),
    (error) => error instanceof AppError && error.code === 'INVALID_REQUEST',
  );
  assert.equal(await verify(ann, { totp_code: both.totp_code }), 'right');
});

test('a secret sealed for one factor cannot be decrypted as another’s', async () => {
  const { ann, code } = await personWithTotp();
  const bob = await personWithTotp();
  const row = await mfa.db
    .selectFrom('mfa_factors')
    .select('secret')
    .where('user_id', '=', bob.ann.user_id)
    .executeTakeFirstOrThrow();
  await mfa.db
    .updateTable('mfa_factors')
    .set({ secret: row.secret })
    .where('user_id', '=', ann.user_id)
    .execute();
  await assert.rejects(verify(ann, { totp_code: code(30) }), /does not open/);
});

test('login: the right password alone is MFA_REQUIRED and no failure; wrong factors lock, the right one logs in', async () => {
  const { ann, code, recovery_codes } = await personWithTotp();
  const attempt = async (given: GivenFactor) => {
    const body = { email: ann.email, password: PASSWORD, ...given };
    const { status, body: got } = await mfa.call('POST', '/v1/auth/login', { body });
    return status === 200 ? got.user.id : `${status} ${got.error.code}`;
  };
  for (let n = 0; n < 6; n++) assert.equal(await attempt({}), '401 MFA_REQUIRED');
  for (let n = 0; n < 4; n++) assert.equal(await attempt({ totp_code: code(90) }), '401 MFA_REQUIRED');
  assert.equal(await attempt({ totp_code: code(30) }), ann.user_id);
  assert.equal(await attempt({ recovery_code: recovery_codes[0] }), ann.user_id);
  const both = { totp_code: code(30), recovery_code: recovery_codes[1] };
  for (let n = 0; n < 6; n++) assert.equal(await attempt(both), '400 INVALID_REQUEST');
  for (let n = 0; n < 4; n++) assert.equal(await attempt({ totp_code: code(90) }), '401 MFA_REQUIRED');
  assert.equal(await attempt({ totp_code: code(90) }), '423 ACCOUNT_LOCKED');
  assert.equal(await attempt({ recovery_code: recovery_codes[1] }), '423 ACCOUNT_LOCKED');
});
