import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hashRecoveryCode, newRecoveryCodes } from './second-factor.ts';

test('ten codes of 16 characters of 5 bits, in groups of four, all different', () => {
  const codes = newRecoveryCodes();
  assert.equal(codes.length, 10);
  assert.equal(new Set([...codes, ...newRecoveryCodes()]).size, 20);
  for (const code of codes) assert.match(code, /^([0-9a-hjkmnp-tv-z]{4}-){3}[0-9a-hjkmnp-tv-z]{4}$/);
});

test('a code is recognised in capitals, without hyphens, with spaces, and with letters for digits', () => {
  const right = hashRecoveryCode('0a1b-1cde-fgh0-jkmn');
  for (const typed of ['0A1B-1CDE-FGH0-JKMN', '0a1b1cdefgh0jkmn', ' oalb icde FGHO jkmn ']) {
    assert.ok(hashRecoveryCode(typed).equals(right), typed);
  }
  assert.ok(!hashRecoveryCode('0a1b-1cde-fgh0-jkmm').equals(right));
});
