import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hash } from '@node-rs/argon2';
import { AppError } from '../../shared/errors.ts';
import { hashPassword, verifyPassword } from './passwords.ts';

test('checks that find no room are refused, with and without an account, and the next ones are answered', async () => {
  // A cheap hash, because many checks run.
  const stored = await hash('twelve chars', { memoryCost: 8, timeCost: 1 });
  const busy = (error: unknown) => error instanceof AppError && error.code === 'UNAVAILABLE';
  // Four run and two hundred wait, which is the limit.
  const crowd = Array.from({ length: 204 }, () => verifyPassword(stored, 'twelve chars'));
  await assert.rejects(verifyPassword(null, 'twelve chars'), busy);
  await assert.rejects(verifyPassword(stored, 'twelve chars'), busy);
  assert.ok((await Promise.all(crowd)).every((right) => right));
  assert.equal(await verifyPassword(null, 'twelve chars'), false);
});

test('a hash is argon2id with 19 MiB, two passes, one lane, and a new salt', async () => {
  const [one, two] = await Promise.all([hashPassword('twelve chars'), hashPassword('twelve chars')]);
  // PHC: 16 bytes of salt and 32 of hash, base64 without padding.
  const shape = /^\$argon2id\$v=19\$m=19456,t=2,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/;
  assert.match(one ?? '', shape);
  assert.match(two ?? '', shape);
  assert.notEqual(one, two);
});

test('a password is verified against its own hash and no other', async () => {
  const stored = await hashPassword('pässword 密码 💥');
  assert.equal(await verifyPassword(stored, 'pässword 密码 💥'), true);
  for (const wrong of ['', 'password', 'pässword 密码 💥 ', 'PÄSSWORD 密码 💥']) {
    assert.equal(await verifyPassword(stored, wrong), false);
  }
});

test('without an account nothing is right, not even the password of the dummy', async () => {
  assert.equal(await verifyPassword(null, 'no account has this password'), false);
});

test('many checks at once are all answered', async () => {
  const stored = await hashPassword('twelve chars');
  const answers = await Promise.all(
    Array.from({ length: 12 }, (_, i) => verifyPassword(stored, i % 2 === 0 ? 'twelve chars' : 'other')),
  );
  assert.deepEqual(
    answers,
    Array.from({ length: 12 }, (_, i) => i % 2 === 0),
  );
});
