/** WebAuthn: registering, the second factor, and logging in with a passkey alone. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type {
  AuthenticationResponseJSON,
  PublicKeyCredentialCreationOptionsJSON,
  PublicKeyCredentialRequestOptionsJSON,
} from '@simplewebauthn/server';
import { sql } from 'kysely';
import { addFactor } from '../../src/control-plane/identity/mfa/factors.ts';
import { passkeyOptions, verifySecondFactor } from '../../src/control-plane/identity/mfa/second-factor.ts';
import { AppError } from '../../src/shared/errors.ts';
import { mfaAppForFile, ORIGIN, PASSWORD, type Person } from '../support/mfa-app.ts';
import { cbor, SoftwareAuthenticator, type Wrongs } from '../support/software-authenticator.ts';

const mfa = await mfaAppForFile();
const FACTORS = '/v1/me/mfa/factors';

async function addPasskey(as: Person) {
  const { status, body } = await mfa.callSudo('POST', FACTORS, {
    as,
    body: { type: 'webauthn', name: 'key' },
  });
  assert.equal(status, 201, JSON.stringify(body));
  return body as { id: string; options: PublicKeyCredentialCreationOptionsJSON };
}

async function register(as: Person, wrongs: Wrongs = {}, device = new SoftwareAuthenticator(ORIGIN)) {
  const { id, options } = await addPasskey(as);
  const { passkey, answer } = device.create(options, wrongs);
  const reply = await mfa.call('POST', `${FACTORS}/${id}/verify`, { as, body: answer });
  return { id, device, passkey, answer, reply };
}

async function personWithPasskey() {
  const ann = await mfa.person();
  const { reply, ...made } = await register(ann);
  assert.equal(reply.status, 200, JSON.stringify(reply.body));
  return { ann, ...made };
}

async function optionsFor(email?: string): Promise<PublicKeyCredentialRequestOptionsJSON> {
  const { status, body } = await mfa.call('POST', '/v1/auth/passkey/options', {
    body: email === undefined ? {} : { email },
  });
  assert.equal(status, 200, JSON.stringify(body));
  return body;
}

const enter = (body: unknown, headers = {}) => mfa.call('POST', '/v1/auth/passkey', { body, headers });
const second = ({ user_id }: Person, webauthn: AuthenticationResponseJSON) =>
  verifySecondFactor(mfa.context, user_id, { webauthn });

test('a passkey is added by its options and confirmed by the browser’s answer', async () => {
  const ann = await mfa.person();
  const { options } = await addPasskey(ann);
  assert.deepEqual(options.rp, { name: 'Berth', id: 'localhost' });
  assert.equal(Buffer.from(options.user.id, 'base64url').toString(), ann.user_id);
  assert.equal(options.user.name, ann.email);
  assert.ok(Buffer.from(options.challenge, 'base64url').length >= 32);
  assert.equal(options.attestation, 'none');
  const { id, reply } = await register(ann);
  assert.deepEqual([reply.status, reply.body.recovery_codes.length], [200, 10]);
  const { body } = await mfa.call('GET', FACTORS, { as: ann });
  const shown = body.data.find((each: { id: string }) => each.id === id);
  assert.deepEqual([shown.type, shown.confirmed_at !== null], ['webauthn', true]);
  const again = await addPasskey(ann);
  assert.equal(again.options.excludeCredentials?.length, 1);
});

test('an invalid registration is 400, and uses up its challenge', async () => {
  const certificate = cbor.map([
    [cbor.text('alg'), cbor.int(-7)],
    [cbor.text('sig'), cbor.bytes(Buffer.alloc(70))],
    [cbor.text('x5c'), cbor.array([cbor.bytes(Buffer.alloc(300))])],
  ]);
  const wrongs: Wrongs[] = [
    { origin: 'http://localhost:7401' },
    { origin: 'https://localhost:7400' },
    { origin: 'http://127.0.0.1:7400' },
    { origin: 'https://evil.example' },
    { rp_id: 'evil.example' },
    { challenge: Buffer.alloc(32).toString('base64url') },
    { cross_origin: true },
    { attestation: ['packed', certificate] },
    { attestation: ['apple', cbor.map([])] },
  ];
  for (const wrong of wrongs) {
    const ann = await mfa.person();
    const { reply } = await register(ann, wrong);
    assert.deepEqual([reply.status, reply.body.error?.code], [400, 'INVALID_REQUEST'], JSON.stringify(wrong));
  }
  const ann = await mfa.person();
  const { id, options } = await addPasskey(ann);
  const device = new SoftwareAuthenticator(ORIGIN);
  const url = `${FACTORS}/${id}/verify`;
  const bad = device.create(options, { origin: 'https://evil.example' }).answer;
  assert.equal((await mfa.call('POST', url, { as: ann, body: bad })).status, 400);
  assert.equal((await mfa.call('POST', url, { as: ann, body: device.create(options).answer })).status, 400);
});

test('a self-attested key is accepted; a statement with certificates is refused unread', async () => {
  assert.equal((await register(await mfa.person(), { self_attested: true })).reply.status, 200);
  const certificates = cbor.map([[cbor.text('x5c'), cbor.array([cbor.bytes(Buffer.alloc(300))])]]);
  for (const format of ['packed', 'fido-u2f', 'tpm', 'android-key', 'android-safetynet', 'apple', 'other']) {
    mfa.logged.length = 0;
    const { reply } = await register(await mfa.person(), { attestation: [format, certificates] });
    assert.equal(reply.status, 400);
    assert.deepEqual(mfa.logged, [`attestation ${format} was not asked for`]);
  }
});

test('at an address without passkeys, a request for one is 409', async () => {
  const at_address = { ...mfa.context, public_url: 'https://192.0.2.7' };
  const conflict = (error: unknown) => error instanceof AppError && error.code === 'CONFLICT';
  await assert.rejects(passkeyOptions(mfa.db, at_address, null), conflict);
  const { user_id } = await mfa.person();
  await assert.rejects(addFactor(mfa.db, at_address, user_id, { type: 'webauthn', name: 'key' }), conflict);
});

test('the challenge of another account is refused, and a registered credential is 409', async () => {
  const ann = await mfa.person();
  const bob = await mfa.person();
  const device = new SoftwareAuthenticator(ORIGIN);
  const of_bob = await addPasskey(bob);
  const { reply } = await register(ann, { challenge: of_bob.options.challenge }, device);
  assert.equal(reply.status, 400);

  const first = await register(ann, {}, device);
  assert.equal(first.reply.status, 200);
  // The same attested credential, answering Bob's challenge.
  const { id, options } = await addPasskey(bob);
  const client_data = JSON.parse(Buffer.from(first.answer.response.clientDataJSON, 'base64url').toString());
  const moved = Buffer.from(JSON.stringify({ ...client_data, challenge: options.challenge })).toString(
    'base64url',
  );
  const body = { ...first.answer, response: { ...first.answer.response, clientDataJSON: moved } };
  const taken = await mfa.call('POST', `${FACTORS}/${id}/verify`, { as: bob, body });
  assert.deepEqual([taken.status, taken.body.error.code], [409, 'CONFLICT']);
});

test('a passkey alone opens a session, with and without the address, and sets the refresh cookie', async () => {
  const { ann, device } = await personWithPasskey();
  for (const email of [undefined, ann.email, ann.email.toUpperCase()]) {
    const options = await optionsFor(email);
    assert.equal(options.rpId, 'localhost');
    const { status, body, headers } = await enter(device.get(options));
    assert.equal(status, 200, JSON.stringify(body));
    assert.deepEqual([body.user.id, body.user.mfa_enabled], [ann.user_id, true]);
    assert.match(body.session_token, /^berth_sess_/);
    assert.match(String(headers['set-cookie']), /^__Host-berth_refresh=/);
    assert.equal(headers['cache-control'], 'no-store');
    assert.equal((await mfa.call('GET', FACTORS, { as: body.session_token })).status, 200);
  }
});

test('an invalid assertion opens no session, and every refusal is the same', async () => {
  const { ann, device, passkey } = await personWithPasskey();
  const bob = await personWithPasskey();
  const wrongs: (Wrongs & { email?: string; why: string })[] = [
    { why: 'origin', origin: 'https://evil.example' },
    { why: 'rp id', rp_id: 'evil.example' },
    { why: 'no challenge of ours', challenge: Buffer.alloc(32).toString('base64url') },
    { why: 'a challenge that no text of the database can be', challenge: '\0' },
    { why: 'signature', forged: true },
    { why: 'no user verification', unverified: true },
    { why: 'cross-origin', cross_origin: true },
    { why: 'nobody named', user_handle: null },
    { why: 'another account named', user_handle: bob.passkey.user_handle },
    { why: 'another account named, address known', email: ann.email, user_handle: bob.passkey.user_handle },
    { why: 'challenge of another account', email: bob.ann.email },
  ];
  const messages = new Set<string>();
  for (const { email, why, ...wrong } of wrongs) {
    const { status, body } = await enter(device.get(await optionsFor(email), { ...wrong, passkey }));
    assert.deepEqual([status, body.error?.code], [401, 'UNAUTHENTICATED'], why);
    messages.add(body.error.message);
  }
  assert.equal(messages.size, 1);
  assert.equal((await enter(device.get(await optionsFor()))).status, 200, 'nothing wrong');
});

test('an assertion works once, also of ten concurrent uses, and not after five minutes', async () => {
  const { device } = await personWithPasskey();
  const answer = device.get(await optionsFor());
  const replies = await Promise.all(Array.from({ length: 10 }, () => enter(answer)));
  assert.equal(replies.filter(({ status }) => status === 200).length, 1);
  assert.equal(replies.filter(({ status }) => status === 401).length, 9);
  const late = device.get(await optionsFor());
  await mfa.db
    .updateTable('webauthn_challenges')
    .set({ expires_at: sql`clock_timestamp() - interval '1 ms'` })
    .execute();
  assert.equal((await enter(late)).status, 401);
  const { expires } = await mfa.db
    .selectFrom('webauthn_challenges')
    .select(sql<number>`extract(epoch from max(expires_at) - now())::float8`.as('expires'))
    .where('challenge', '=', (await optionsFor()).challenge)
    .executeTakeFirstOrThrow();
  assert.ok(expires > 290 && expires <= 301, String(expires));
});

test('a signature counter that does not increase is refused; without a counter it is always 0', async () => {
  const { device, passkey } = await personWithPasskey();
  assert.equal((await enter(device.get(await optionsFor(), { counter: 7 }))).status, 200);
  mfa.logged.length = 0;
  for (const counter of [7, 6, 0]) {
    assert.equal((await enter(device.get(await optionsFor(), { counter }))).status, 401, String(counter));
  }
  assert.deepEqual(
    mfa.logged.map((line) => line.includes('did not go up')),
    [true, true, true],
  );
  assert.equal((await enter(device.get(await optionsFor(), { counter: 8 }))).status, 200);
  assert.equal(
    (await enter(device.get(await optionsFor(), { counter: 1_000_000, forged: true, passkey }))).status,
    401,
  );
  assert.equal(
    (await enter(device.get(await optionsFor(), { counter: 9 }))).status,
    200,
    'a forged answer moved nothing',
  );
  const without = await personWithPasskey();
  for (let n = 0; n < 2; n++)
    assert.equal((await enter(without.device.get(await optionsFor(), { counter: 0 }))).status, 200);
});

test('of two concurrent assertions with one counter, one succeeds', async () => {
  const { device } = await personWithPasskey();
  const answers = await Promise.all(
    Array.from({ length: 8 }, async () => device.get(await optionsFor(), { counter: 5 })),
  );
  const replies = await Promise.all(answers.map((answer) => enter(answer)));
  assert.equal(replies.filter(({ status }) => status === 200).length, 1);
});

test('as a second factor: one challenge of this account, answered once by its credential, without user verification', async () => {
  const { ann, device, passkey } = await personWithPasskey();
  const bob = await personWithPasskey();
  const answer = device.get(await optionsFor(ann.email), { unverified: true, user_handle: null });
  assert.equal(await second(ann, answer), 'right');
  assert.equal(await second(ann, answer), 'wrong', 'replayed');
  assert.equal(await second(ann, device.get(await optionsFor())), 'wrong', 'a challenge for whoever answers');
  assert.equal(
    await second(ann, device.get(await optionsFor(bob.ann.email), { passkey })),
    'wrong',
    "Bob's challenge",
  );
  const foreign = bob.device.get(await optionsFor(ann.email), { passkey: bob.passkey });
  assert.equal(await second(ann, foreign), 'wrong', "Bob's credential");
  const unnamed = bob.device.get(await optionsFor(ann.email), { passkey: bob.passkey, user_handle: null });
  assert.equal(await second(ann, unnamed), 'wrong', "Bob's credential, nobody named");
  assert.equal(
    await second(ann, device.get(await optionsFor(ann.email), { counter: 1 })),
    'wrong',
    'counter',
  );
  assert.equal(
    await second(ann, device.get(await optionsFor(ann.email), { forged: true })),
    'wrong',
    'signature',
  );
  assert.equal(await second(ann, device.get(await optionsFor(ann.email))), 'right');
  const body = { email: ann.email, password: PASSWORD, webauthn: device.get(await optionsFor(ann.email)) };
  assert.equal((await mfa.call('POST', '/v1/auth/login', { body })).body.user.id, ann.user_id);
  assert.equal(
    (await mfa.call('POST', '/v1/auth/login', { body })).body.error.code,
    'MFA_REQUIRED',
    'replayed',
  );
  // A registration's answer is no assertion, and its challenge none of a login.
  const { options } = await addPasskey(ann);
  assert.equal(
    await second(ann, device.get(await optionsFor(ann.email), { challenge: options.challenge })),
    'wrong',
  );
});

test('options do not reveal which addresses have an account: without a passkey they name invented ones, always the same', async () => {
  const { ann } = await personWithPasskey();
  const without = await mfa.person();
  const nobody = 'nobody@example.org';
  const shape = (options: PublicKeyCredentialRequestOptionsJSON) => ({
    keys: Object.keys(options).sort(),
    credential: Object.keys(options.allowCredentials?.[0] ?? {}).sort(),
    verification: options.userVerification,
  });
  const real = shape(await optionsFor(ann.email));
  for (const email of [nobody, without.email]) {
    const first = await optionsFor(email);
    assert.deepEqual(shape(first), real);
    assert.deepEqual((await optionsFor(email.toUpperCase())).allowCredentials, first.allowCredentials);
    assert.notEqual((await optionsFor(email)).challenge, first.challenge);
  }
  assert.notDeepEqual(
    (await optionsFor(nobody)).allowCredentials,
    (await optionsFor('other@example.org')).allowCredentials,
  );
  assert.deepEqual((await optionsFor()).allowCredentials ?? [], []);
});

test('neither a removed nor an unconfirmed passkey opens a session', async () => {
  const { ann, id, device } = await personWithPasskey();
  const answer = device.get(await optionsFor());
  assert.equal(
    (await mfa.call('DELETE', `${FACTORS}/${id}`, { as: ann, headers: { cookie: await mfa.sudo(ann) } }))
      .status,
    204,
  );
  assert.equal((await enter(answer)).status, 401);
  const other = new SoftwareAuthenticator(ORIGIN);
  other.create((await addPasskey(ann)).options);
  assert.equal((await enter(other.get(await optionsFor()))).status, 401);
});

test('a malformed request is 400, and a page of another site gets 403', async () => {
  const { device } = await personWithPasskey();
  const answer = device.get(await optionsFor());
  const bodies = [
    {},
    { ...answer, more: 1 },
    { ...answer, type: 'password' },
    { ...answer, id: '' },
    { ...answer, response: {} },
    [],
  ];
  for (const body of bodies) assert.equal((await enter(body)).status, 400, JSON.stringify(body));
  for (const body of [{ email: 'x' }, { mail: 'a@b.c' }, { email: null }]) {
    assert.equal(
      (await mfa.call('POST', '/v1/auth/passkey/options', { body })).status,
      400,
      JSON.stringify(body),
    );
  }
  const garbage = { ...answer, response: { ...answer.response, clientDataJSON: 'AAAA' } };
  assert.equal((await enter(garbage)).status, 401);
  for (const headers of [{ origin: 'https://evil.example' }, { 'sec-fetch-site': 'cross-site' }]) {
    assert.equal((await enter(answer, headers)).status, 403);
  }
  assert.equal(
    (await enter({ ...answer, authenticatorAttachment: null })).status,
    200,
    'none of these used it up',
  );
});
