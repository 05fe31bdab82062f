import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { linesOf, partsOf } from './log-lines.ts';

const TIME = '2026-11-25T09:12:00.000Z';

test('a line has its time, or none where it is not known, and its text without terminal control', () => {
  assert.deepEqual(
    linesOf(
      `- \u001bc\u001b[?7l\u001b[2J\u001b(Bold\n${TIME} \u001b[0;32mOK\u001b[0m a\tb\r\n${TIME} \n${TIME} \u001b]0;x\u0007last`,
    ),
    [
      { time: null, text: 'old' },
      { time: TIME, text: 'OK a\tb' },
      { time: TIME, text: '' },
      { time: TIME, text: 'last' },
    ],
  );
  assert.deepEqual(linesOf(''), []);
});

describe('a search', () => {
  const found = (text: string, sought: string) =>
    partsOf(text, sought)
      ?.map((part) => (part.found ? `[${part.text}]` : part.text))
      .join('') ?? null;
  test('marks each occurrence, in upper and lower case', () => {
    assert.equal(found('Error: no error, ERR', 'error'), '[Error]: no [error], ERR');
    assert.equal(found('aaa', 'aa'), '[aa]a');
    assert.equal(found('x.y', '.'), 'x[.]y');
  });
  test('without a match has no line, and without a word has all', () => {
    assert.equal(found('text', 'other'), null);
    assert.equal(found('text', ''), 'text');
  });
  test('finds in lines whose length changes with their case', () => {
    assert.equal(found('İstanbul', 'stan'), 'İstanbul');
    assert.equal(found('İstanbul', 'ankara'), null);
  });
});
