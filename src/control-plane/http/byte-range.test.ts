import assert from 'node:assert/strict';
import { test } from 'node:test';
import { mayBePart, namesEtag, rangeOf } from './byte-range.ts';

test('a range is what of it is there', () => {
  assert.deepEqual(rangeOf('bytes=0-0', 10), { offset: 0, length: 1 });
  assert.deepEqual(rangeOf('bytes=3-', 10), { offset: 3, length: 7 });
  assert.deepEqual(rangeOf('bytes=3-99', 10), { offset: 3, length: 7 });
  assert.deepEqual(rangeOf('bytes=-4', 10), { offset: 6, length: 4 });
  assert.deepEqual(rangeOf('bytes=-40', 10), { offset: 0, length: 10 });
});

test('a range of nothing cannot be satisfied', () => {
  for (const header of ['bytes=10-', 'bytes=10-20', 'bytes=-0']) {
    assert.equal(rangeOf(header, 10), 'unsatisfiable');
  }
  assert.equal(rangeOf('bytes=0-', 0), 'unsatisfiable');
});

test('what is malformed, of several ranges or in another unit means everything', () => {
  for (const header of [
    undefined,
    '',
    'bytes=',
    'bytes=-',
    'bytes=5-3',
    'bytes=0-1,3-4',
    'lines=0-1',
    'bytes=a-',
  ]) {
    assert.equal(rangeOf(header, 10), null);
  }
});

test('If-Range allows a part only of the file that it names', () => {
  const at = new Date('2026-01-02T03:04:05.678Z');
  assert.equal(mayBePart(undefined, '"a"', at), true);
  assert.equal(mayBePart('"a"', '"a"', at), true);
  assert.equal(mayBePart('Fri, 02 Jan 2026 03:04:05 GMT', '"a"', at), true);
  for (const header of ['"b"', 'W/"a"', 'Fri, 02 Jan 2026 03:04:06 GMT']) {
    assert.equal(mayBePart(header, '"a"', at), false);
  }
});

test('a list of ETags names one of them, or any', () => {
  assert.equal(namesEtag('"b", W/"a"', '"a"'), true);
  assert.equal(namesEtag('*', '"a"'), true);
  assert.equal(namesEtag('"b"', '"a"'), false);
});
