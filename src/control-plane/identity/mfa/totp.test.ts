import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { matchingStep, newTotpSecret, otpauthUrl } from './second-factor.ts';

/** Base32 of the ASCII text `12345678901234567890`, the SHA-1 secret of RFC 6238, appendix B. */
const RFC_SECRET = 'GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ';

test('codes are those of RFC 6238, appendix B (its last six digits)', () => {
  const vectors: [time_s: number, code: string][] = [
    [59, '287082'],
    [1_111_111_109, '081804'],
    [1_111_111_111, '050471'],
    [1_234_567_890, '005924'],
    [2_000_000_000, '279037'],
    [20_000_000_000, '353130'],
  ];
  for (const [time_s, code] of vectors) {
    assert.equal(matchingStep(RFC_SECRET, code, time_s * 1000), Math.floor(time_s / 30), code);
  }
});

test('a code is good in its own step, the one before and the one after, and in no other', () => {
  const step = 41_152_263; // 1234567890 s
  const at = (steps: number, s: number) =>
    matchingStep(RFC_SECRET, '005924', ((step + steps) * 30 + s) * 1000);
  assert.deepEqual([at(-1, 0), at(0, 0), at(0, 29.999), at(1, 29.999)], [step, step, step, step]);
  assert.deepEqual([at(-2, 29.999), at(2, 0)], [null, null]);
});

test('a code may have a space in its middle; anything else is no code, and nothing throws', () => {
  assert.equal(matchingStep(RFC_SECRET, '287 082', 59_000), 1);
  assert.equal(matchingStep(RFC_SECRET, '287082', 0), 1);
  fc.assert(
    fc.property(fc.string(), (text) => {
      fc.pre(!/^\d{6}$/.test(text.replaceAll(' ', '')));
      assert.equal(matchingStep(RFC_SECRET, text, 59_000), null);
    }),
  );
});

test('a secret has 160 bits, and the URL says all that an app needs', () => {
  const secret = newTotpSecret();
  assert.match(secret, /^[A-Z2-7]{32}$/);
  assert.notEqual(secret, newTotpSecret());
  const url = new URL(otpauthUrl(secret, 'ann+1@example.org'));
  assert.equal(`${url.protocol}//${url.host}`, 'otpauth://totp');
  assert.equal(decodeURIComponent(url.pathname), '/Berth:ann+1@example.org');
  assert.deepEqual(Object.fromEntries(url.searchParams), {
    issuer: 'Berth',
    secret,
    algorithm: 'SHA1',
    digits: '6',
    period: '30',
  });
});
