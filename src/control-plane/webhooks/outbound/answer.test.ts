import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  KEPT_BYTES,
  KEPT_HEADER_BYTES,
  keptHeaders,
  MAX_RETRY_AFTER_SECONDS,
  printable,
  retryAfterSeconds,
} from './answer.ts';

test('any bytes become text that a database takes, of at most 4 KiB', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 3_000 }), { maxLength: 4 }), (chunks) => {
      const text = printable(chunks);
      assert.ok(Buffer.byteLength(text) <= KEPT_BYTES);
      assert.ok(text.isWellFormed());
      assert.doesNotMatch(text, /[^\P{Cc}\t\n]/u);
    }),
  );
});

test('readable text stays as it is, and is cut between characters', () => {
  assert.equal(printable([Buffer.from('grün\tja\r\nno')]), 'grün\tja\nno');
  assert.equal(printable([Buffer.from(`x${'ü'.repeat(3_000)}`)]), `x${'ü'.repeat(2_047)}`);
  assert.equal(printable([Buffer.from([0x61, 0, 0xff, 0x1b, 0x62])]), 'a\ufffd\ufffd\ufffdb');
});

test('any headers become text that a database takes, of at most 2 KiB', () => {
  const value = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 900 }),
    fc.array(fc.string(), { maxLength: 3 }),
  );
  fc.assert(
    fc.property(fc.dictionary(fc.string({ unit: 'grapheme-ascii' }), value), (headers) => {
      const kept = Object.entries(keptHeaders(headers));
      const bytes = kept.flat().reduce((sum, text) => sum + Buffer.byteLength(text), 0);
      assert.ok(bytes <= KEPT_HEADER_BYTES);
      for (const [, text] of kept) {
        assert.ok(text.isWellFormed());
        assert.doesNotMatch(text, /\p{Cc}/u);
      }
    }),
  );
});

test('headers are kept as they came, cookies are not', () => {
  const headers = { 'content-type': 'text/plain', 'set-cookie': ['session=1'], vary: ['a', 'b'] };
  assert.deepEqual(keptHeaders(headers), { 'content-type': 'text/plain', vary: 'a, b' });
});

test('Retry-After is seconds or a date, never negative, at most a week', () => {
  const now_ms = Date.parse('2026-01-01T00:00:00Z');
  const cases: readonly (readonly [string | string[] | undefined, number | null])[] = [
    ['0', 0],
    ['120', 120],
    [' 7 ', 7],
    [['3', '4'], 3],
    ['9999999999', MAX_RETRY_AFTER_SECONDS],
    ['Thu, 01 Jan 2026 00:01:30 GMT', 90],
    ['Wed, 31 Dec 2025 00:00:00 GMT', 0],
    ['Thu, 01 Jan 2099 00:00:00 GMT', MAX_RETRY_AFTER_SECONDS],
    [undefined, null],
    ['', null],
    ['-1', null],
    ['1.5', null],
    ['soon', null],
    ['soon GMT', null],
    ['2026-01-01', null],
    ['99999999999', null],
  ];
  for (const [header, seconds] of cases)
    assert.equal(retryAfterSeconds(header, now_ms), seconds, String(header));
});
