import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import fc from 'fast-check';
import { API_KEY_PREFIX, hashToken, newToken, SESSION_PREFIX, tokenPrefix } from './tokens.ts';

const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';

/** CRC-32 (ISO 3309), bit by bit: another way than zlib's. */
function crc32(text: string): number {
  let crc = 0xffffffff;
  for (const byte of Buffer.from(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return ~crc >>> 0;
}

function base62(value: number): string {
  let out = '';
  for (let rest = BigInt(value); rest > 0n; rest /= 62n) out = DIGITS.charAt(Number(rest % 62n)) + out;
  return out.padStart(6, '0');
}

test("the checksum equals the standard's test vector", () => {
  assert.equal(crc32('123456789'), 0xcbf43926);
});

test('a token is prefix, 43 random characters, and the CRC32 of those 43 in base62', () => {
  for (const prefix of [SESSION_PREFIX, API_KEY_PREFIX] as const) {
    for (let i = 0; i < 200; i++) {
      const token = newToken(prefix);
      assert.match(token, /^berth_(live|sess)_[0-9A-Za-z]{49}$/);
      const body = token.slice(prefix.length);
      assert.equal(body.slice(43), base62(crc32(body.slice(0, 43))));
      assert.equal(tokenPrefix(token), prefix);
    }
  }
});

test('a checksum below 62^5 is padded with zeros', () => {
  // A body whose CRC32 is small, found by search.
  let body = '';
  for (let i = 0; crc32(body) >= 62 ** 5 / 4 || body === ''; i++) body = String(i).padStart(43, 'a');
  const token = `${API_KEY_PREFIX}${body}${base62(crc32(body))}`;
  assert.equal(token.at(-6), '0');
  assert.equal(tokenPrefix(token), API_KEY_PREFIX);
});

test('one changed character is always noticed', () => {
  fc.assert(
    fc.property(fc.nat(48), fc.constantFrom(...DIGITS), (at, character) => {
      const token = newToken(API_KEY_PREFIX);
      const index = API_KEY_PREFIX.length + at;
      const changed = token.slice(0, index) + character + token.slice(index + 1);
      assert.equal(tokenPrefix(changed), changed === token ? API_KEY_PREFIX : null);
    }),
  );
});

test('a text that is not a token has no prefix', () => {
  fc.assert(fc.property(fc.string(), (text) => tokenPrefix(text) === null));
  fc.assert(fc.property(fc.string(), (text) => tokenPrefix(API_KEY_PREFIX + text) === null));
});

test('the random part uses the whole alphabet', () => {
  const seen = new Set<string>();
  for (let i = 0; i < 200; i++) for (const each of newToken(SESSION_PREFIX).slice(11, -6)) seen.add(each);
  assert.deepEqual([...seen].sort(), [...DIGITS].sort());
});

test('at rest a token is the SHA-256 of all of it', () => {
  const token = newToken(API_KEY_PREFIX);
  assert.deepEqual(hashToken(token), createHash('sha256').update(token, 'utf8').digest());
});
