import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { untrustedText, withoutControls } from './untrusted-text.ts';

/** Characters that a terminal acts on, or that hide or reorder text. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: the test searches for them
const HARMFUL = /[\u0000-\u001f\u007f-\u009f\u2028\u2029]|\p{Cf}|\p{Cs}/u;

test('untrusted text becomes one line of at most 300 characters without control characters', () => {
  const piece = fc.oneof(
    fc.string({ unit: 'binary' }),
    fc.constantFrom('\u001b[2J', '\u001b]0;title\u0007', '\u009b31m', '\u202e', '\ud800', '\r\n', '\u2028'),
  );
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 40 }), (pieces) => {
      const line = untrustedText(pieces.join(''));
      assert.ok([...line].length <= 300, `${line.length}`);
      assert.doesNotMatch(line, HARMFUL);
      assert.equal(untrustedText(line), line, 'a second pass removes nothing');
    }),
  );
});

test('readable text stays', () => {
  const cases: readonly (readonly [string, string])[] = [
    ['plain words, ä and 漢字', 'plain words, ä and 漢字'],
    ['\u001b[1;31mred\u001b[0m alert', 'red alert'],
    ['\u001b]0;owned\u0007after a title', 'after a title'],
    ['\u001bP+q544e\u001b\\after a string', 'after a string'],
    ['first\r\nsecond\tthird', 'first second third'],
    ['user\u202egpj.exe', 'usergpj.exe'],
    ['zero\u200bwidth\ufeff', 'zerowidth'],
    ['half \ud83d', 'half \ufffd'],
    ['  ', ''],
    ['a \u202e b', 'a b'],
  ];
  for (const [text, line] of cases) assert.equal(untrustedText(text), line);
});

test('long text is cut between characters and marked', () => {
  assert.equal(untrustedText('a'.repeat(300)), 'a'.repeat(300));
  assert.equal(untrustedText('a'.repeat(10_000_000)), `${'a'.repeat(299)}…`);
  assert.equal(untrustedText('😀'.repeat(301)), `${'😀'.repeat(299)}…`);
  assert.equal(untrustedText(`${' '.repeat(5_000)}late`), '…');
});

test('a value that is no string becomes empty text', () => {
  const nested = JSON.parse('['.repeat(30_000) + ']'.repeat(30_000)) as unknown;
  for (const value of [nested, undefined, null, 7, { toString: () => '\u001b[2J' }]) {
    assert.equal(untrustedText(value), '');
  }
});

test('for a terminal of several lines, these stay', () => {
  assert.equal(withoutControls('a\tb\n\u001b[2Jc\u0007\u202ed\r'), 'a\tb\ncd');
});
