/** The routes under /v1/me/mfa: adding, confirming, listing and removing second factors. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { sweepUnconfirmedFactors } from '../../src/control-plane/identity/mfa/store.ts';
import { hashToken, newToken } from '../../src/control-plane/identity/tokens.ts';
import type { Mail } from '../../src/control-plane/mail/send-mails.ts';
import { type MfaFactorId, newId } from '../../src/shared/ids.ts';
import { mfaAppForFile, ORIGIN, type Person } from '../support/mfa-app.ts';
import { mailNotificationsOfEvents } from '../support/notifications.ts';
import { SoftwareAuthenticator } from '../support/software-authenticator.ts';
import { totpCode } from '../support/totp-code.ts';

const mfa = await mfaAppForFile();
const FACTORS = '/v1/me/mfa/factors';

async function addTotp(as: Person, name = 'phone') {
  const { status, body } = await mfa.callSudo('POST', FACTORS, { as, body: { type: 'totp', name } });
  assert.equal(status, 201, JSON.stringify(body));
  return body as { id: MfaFactorId; secret: string; otpauth_url: string };
}

async function confirmTotp(as: Person, factor: { id: string; secret: string }) {
  const code = totpCode(factor.secret, mfa.clock.now_s);
  return mfa.call('POST', `${FACTORS}/${factor.id}/verify`, { as, body: { code } });
}

/** A code that is none of the three which are good now. */
function wrongCode(secret: string): string {
  const good = [-30, 0, 30].map((s) => totpCode(secret, mfa.clock.now_s + s));
  return ['000000', '111111', '222222', '333333'].find((code) => !good.includes(code)) ?? '';
}

test('a TOTP factor shows its secret once, is confirmed by a code, and is listed without the secret', async () => {
  const ann = await mfa.person();
  const added = await mfa.callSudo('POST', FACTORS, { as: ann, body: { type: 'totp', name: 'phone' } });
  assert.equal(added.status, 201);
  assert.deepEqual(Object.keys(added.body).sort(), ['id', 'name', 'otpauth_url', 'secret', 'type']);
  assert.match(added.body.id, /^mfa_[0-9a-z]{26}$/);
  assert.match(added.body.secret, /^[A-Z2-7]{32}$/);
  assert.ok(added.body.otpauth_url.includes(encodeURIComponent(ann.email)));
  assert.equal(added.headers['cache-control'], 'no-store');

  const before = await mfa.call('GET', FACTORS, { as: ann });
  assert.equal(before.body.data[0].confirmed_at, null);
  const confirmed = await confirmTotp(ann, added.body);
  assert.equal(confirmed.status, 200);
  assert.equal(confirmed.body.recovery_codes.length, 10);
  assert.equal(confirmed.headers['cache-control'], 'no-store');

  const { body } = await mfa.call('GET', FACTORS, { as: ann });
  assert.equal(body.next_cursor, null);
  assert.deepEqual(Object.keys(body.data[0]).sort(), [
    'confirmed_at',
    'created_at',
    'id',
    'last_used_at',
    'name',
    'type',
  ]);
  assert.ok(body.data[0].confirmed_at !== null);
  const audit = await mfa.db
    .selectFrom('audit_log')
    .selectAll()
    .where('org_id', '=', ann.org_id)
    .orderBy('serial')
    .execute();
  assert.deepEqual(
    audit.map(({ action, target }) => [action, target]),
    [
      ['mfa.add', added.body.id],
      ['mfa.confirm', added.body.id],
    ],
  );
});

test('the database has neither a plain secret nor a plain recovery code', async () => {
  const ann = await mfa.person();
  const factor = await addTotp(ann);
  const { body } = await confirmTotp(ann, factor);
  const plain: string[] = [
    factor.secret,
    ...body.recovery_codes,
    ...body.recovery_codes.map((code: string) => code.replaceAll('-', '')),
  ];
  const forms = plain.flatMap((text) => [text, Buffer.from(text).toString('hex')]);
  forms.push(base32Hex(factor.secret));
  const { rows: tables } = await sql<{
    name: string;
  }>`select tablename as name from pg_tables where schemaname = 'public'`.execute(mfa.db);
  let everything = '';
  for (const { name } of tables) {
    const { rows } = await sql<{ text: string }>`select t::text as text from ${sql.table(name)} t`.execute(
      mfa.db,
    );
    const all = rows
      .map(({ text }) => text)
      .join('\n')
      .toLowerCase();
    for (const form of forms) assert.ok(!all.includes(form.toLowerCase()), `${form} is in ${name}`);
    everything += all;
  }
  assert.ok(
    everything.includes(factor.id) && everything.includes(ann.email),
    'the search finds what is there',
  );
});

function base32Hex(text: string): string {
  let bits = 0n;
  for (const char of text) bits = (bits << 5n) | BigInt('ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'.indexOf(char));
  return bits.toString(16).padStart(40, '0');
}

test('a wrong code is 400 on field code, and the fifth in a row ends the unconfirmed factor', async () => {
  const ann = await mfa.person();
  const factor = await addTotp(ann);
  const url = `${FACTORS}/${factor.id}/verify`;
  for (let n = 1; n <= 5; n++) {
    const { status, body } = await mfa.call('POST', url, {
      as: ann,
      body: { code: wrongCode(factor.secret) },
    });
    assert.deepEqual(
      [status, body.error.code, body.error.details[0].field],
      [400, 'INVALID_REQUEST', 'code'],
      `${n}`,
    );
  }
  assert.equal((await confirmTotp(ann, factor)).status, 404);
  const again = await addTotp(ann);
  for (let n = 1; n <= 4; n++)
    await mfa.call('POST', `${FACTORS}/${again.id}/verify`, {
      as: ann,
      body: { code: wrongCode(again.secret) },
    });
  assert.equal((await confirmTotp(ann, again)).status, 200);
});

test('of twenty concurrent wrong codes at most five are checked', async () => {
  const ann = await mfa.person();
  const factor = await addTotp(ann);
  const body = { code: wrongCode(factor.secret) };
  const answers = await Promise.all(
    Array.from({ length: 20 }, () => mfa.call('POST', `${FACTORS}/${factor.id}/verify`, { as: ann, body })),
  );
  assert.equal(answers.filter(({ status }) => status === 400).length, 5);
  assert.equal(answers.filter(({ status }) => status === 404).length, 15);
});

test('a second confirmation is 409, and only the first factor returns recovery codes', async () => {
  const ann = await mfa.person();
  const first = await addTotp(ann);
  const codes = await Promise.all([confirmTotp(ann, first), confirmTotp(ann, first)]);
  assert.deepEqual(codes.map(({ status }) => status).sort(), [200, 409]);
  const second = await confirmTotp(ann, await addTotp(ann, 'tablet'));
  assert.deepEqual([second.status, second.body], [200, { recovery_codes: null }]);
  await mfa.db.deleteFrom('recovery_codes').where('user_id', '=', ann.user_id).execute();
  const third = await confirmTotp(ann, await addTotp(ann, 'watch'));
  assert.equal(third.body.recovery_codes.length, 10);
});

test("a confirmed factor is reported by mail, whatever the account's preferences", async () => {
  const ann = await mfa.person();
  const muted = { mail: { 'mfa.added': false } };
  const put = await mfa.call('PUT', '/v1/notifications/preferences', { as: ann, body: muted });
  assert.equal(put.status, 400);
  const phone = await addTotp(ann);
  const mailed = async () => {
    const mails: Mail[] = [];
    await mailNotificationsOfEvents(mfa.db, async (mail) => void mails.push(mail));
    return mails.filter(({ to }) => to === ann.email).map(({ text }) => text);
  };
  assert.deepEqual(await mailed(), [], 'it opens nothing yet');
  await confirmTotp(ann, phone);
  const [told, ...more] = await mailed();
  assert.match(told ?? '', /authenticator app "phone" was added/);
  assert.deepEqual(more, []);
});

test('a removal needs sudo, is reported by mail, and removes the recovery codes with the last factor', async () => {
  const ann = await mfa.person();
  const phone = await addTotp(ann);
  const tablet = await addTotp(ann, 'tablet');
  await confirmTotp(ann, phone);
  await confirmTotp(ann, tablet);
  const refused = await mfa.call('DELETE', `${FACTORS}/${phone.id}`, { as: ann });
  assert.deepEqual([refused.status, refused.body.error.code], [403, 'SUDO_REQUIRED']);
  const headers = { cookie: await mfa.sudo(ann) };
  const left = async () =>
    (await mfa.db.selectFrom('recovery_codes').selectAll().where('user_id', '=', ann.user_id).execute())
      .length;
  assert.equal((await mfa.call('DELETE', `${FACTORS}/${phone.id}`, { as: ann, headers })).status, 204);
  assert.equal(await left(), 10);
  assert.equal((await mfa.call('DELETE', `${FACTORS}/${tablet.id}`, { as: ann, headers })).status, 204);
  assert.equal(await left(), 0);
  assert.equal((await mfa.call('DELETE', `${FACTORS}/${tablet.id}`, { as: ann, headers })).status, 404);
  const mails: Mail[] = [];
  await mailNotificationsOfEvents(mfa.db, async (mail) => void mails.push(mail));
  const told = mails.filter(({ to, subject }) => to === ann.email && subject.includes('factor was removed'));
  const removed = told.map(({ text }) => /authenticator app "(\w+)" was removed/.exec(text)?.[1]);
  assert.deepEqual(removed.sort(), ['phone', 'tablet']);
});

test('an account has at most ten factors, also concurrently', async () => {
  const ann = await mfa.person();
  const body = { type: 'totp', name: 'phone' };
  const answers = await Promise.all(
    Array.from({ length: 14 }, () => mfa.callSudo('POST', FACTORS, { as: ann, body })),
  );
  assert.equal(answers.filter(({ status }) => status === 201).length, 10);
  const over = answers.find(({ status }) => status !== 201);
  assert.deepEqual([over?.status, over?.body.error.code], [429, 'QUOTA_EXCEEDED']);
  const page = await mfa.call('GET', `${FACTORS}?limit=6`, { as: ann });
  const rest = await mfa.call('GET', `${FACTORS}?limit=6&cursor=${page.body.next_cursor}`, { as: ann });
  assert.equal(new Set([...page.body.data, ...rest.body.data].map(({ id }) => id)).size, 10);
  const an_hour_ago = sql<Date>`now() - interval '61 minutes'`;
  await mfa.db
    .updateTable('mfa_factors')
    .set({ created_at: an_hour_ago })
    .where('user_id', '=', ann.user_id)
    .execute();
  assert.equal(
    (await mfa.callSudo('POST', FACTORS, { as: ann, body })).status,
    201,
    'what was never confirmed gives way',
  );
});

test('an unconfirmed factor is deleted after an hour, a confirmed one stays', async () => {
  const ann = await mfa.person();
  const kept = await addTotp(ann);
  await confirmTotp(ann, kept);
  const old = await addTotp(ann, 'old');
  const young = await addTotp(ann, 'young');
  const age = (id: MfaFactorId, minutes: number) =>
    mfa.db
      .updateTable('mfa_factors')
      .set({ created_at: sql`now() - make_interval(mins => ${minutes})` })
      .where('id', '=', id)
      .execute();
  await age(kept.id, 600);
  await age(old.id, 61);
  await age(young.id, 59);
  await sweepUnconfirmedFactors(mfa.db);
  const { body } = await mfa.call('GET', FACTORS, { as: ann });
  assert.deepEqual(body.data.map(({ id }: { id: string }) => id).sort(), [kept.id, young.id].sort());
});

test("another user's factor is 404, like an unknown and a malformed id", async () => {
  const ann = await mfa.person();
  const bob = await mfa.person();
  const factor = await addTotp(ann);
  const headers = { cookie: await mfa.sudo(bob) };
  for (const id of [factor.id, newId('mfa'), 'mfa_nonsense', newId('usr')]) {
    const verify = await mfa.call('POST', `${FACTORS}/${id}/verify`, {
      as: bob,
      body: { code: totpCode(factor.secret, mfa.clock.now_s) },
    });
    assert.deepEqual([verify.status, verify.body.error.code], [404, 'NOT_FOUND'], id);
    assert.equal((await mfa.call('DELETE', `${FACTORS}/${id}`, { as: bob, headers })).status, 404, id);
  }
  assert.deepEqual((await mfa.call('GET', FACTORS, { as: bob })).body.data, []);
});

test('without a credential 401, with an API key 403, on every route', async () => {
  const ann = await mfa.person();
  const key = newToken('berth_live_');
  await mfa.db
    .insertInto('api_keys')
    .values({
      id: newId('ak'),
      org_id: ann.org_id,
      user_id: ann.user_id,
      name: 'k',
      scope: '*',
      token_hash: hashToken(key),
      prefix: 'berth_live_',
      last4: key.slice(-4),
    })
    .execute();
  const routes = [
    ['GET', FACTORS],
    ['POST', FACTORS],
    ['POST', `${FACTORS}/${newId('mfa')}/verify`],
    ['DELETE', `${FACTORS}/${newId('mfa')}`],
  ] as const;
  for (const [method, url] of routes) {
    assert.equal((await mfa.call(method, url)).status, 401, `${method} ${url}`);
    const { status, body } = await mfa.call(method, url, { as: key });
    assert.deepEqual([status, body.error.code], [403, 'FORBIDDEN'], `${method} ${url}`);
  }
});

test('400 for unknown fields, kinds and names, and for a response of the other kind', async () => {
  const ann = await mfa.person();
  const bodies = [
    {},
    { type: 'sms', name: 'x' },
    { type: 'totp' },
    { type: 'totp', name: '' },
    { type: 'totp', name: 'a\nb' },
    { type: 'totp', name: 'x', secret: 'y' },
  ];
  for (const body of bodies) {
    const answer = await mfa.callSudo('POST', FACTORS, { as: ann, body });
    assert.deepEqual([answer.status, answer.body.error.code], [400, 'INVALID_REQUEST'], JSON.stringify(body));
  }
  const totp = await addTotp(ann);
  const { body: passkey } = await mfa.callSudo('POST', FACTORS, {
    as: ann,
    body: { type: 'webauthn', name: 'key' },
  });
  const { answer } = new SoftwareAuthenticator(ORIGIN).create(passkey.options);
  const code = { code: totpCode(totp.secret, mfa.clock.now_s) };
  const cases: [string, unknown][] = [
    [totp.id, {}],
    [totp.id, { code: '12345' }],
    [totp.id, { code: 123456 }],
    [totp.id, { ...code, more: 1 }],
    [totp.id, answer],
    [passkey.id, code],
    [passkey.id, { ...answer, more: 1 }],
    [passkey.id, { ...answer, response: { clientDataJSON: 'e30' } }],
  ];
  for (const [id, body] of cases) {
    const { status, body: got } = await mfa.call('POST', `${FACTORS}/${id}/verify`, { as: ann, body });
    assert.deepEqual([status, got.error.code], [400, 'INVALID_REQUEST'], JSON.stringify(body));
  }
  assert.equal((await confirmTotp(ann, totp)).status, 200, 'none of these was a try');
});
