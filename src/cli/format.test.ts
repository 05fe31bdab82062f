import assert from 'node:assert/strict';
import { test } from 'node:test';
import { timeCell, when, wrapped } from './table.ts';

test('a text is wrapped between words, and a longer word gets its own line', () => {
  assert.deepEqual(wrapped('if that was not you', 11), ['if that was', 'not you']);
  assert.deepEqual(wrapped('is SHA256:abcdefghijkl allowed', 10), ['is', 'SHA256:abcdefghijkl', 'allowed']);
  assert.deepEqual(wrapped('a b', Number.POSITIVE_INFINITY), ['a b']);
});

test('a time is shown with its distance from now, before or after', () => {
  const at = '2026-11-25T09:12:30.000Z';
  const shown = (now: string) => when(at, Date.parse(now));
  const local = new Date(at);
  const hour = String(local.getHours()).padStart(2, '0');
  assert.match(shown('2026-11-25T09:15:30Z'), new RegExp(`^2026-11-2\\d ${hour}:\\d2 \\(3 min ago\\)$`));
  assert.match(shown('2026-11-23T09:12:30Z'), /\(in 2 d\)$/);
  assert.match(shown('2026-11-25T09:12:20Z'), /\(just now\)$/);
  assert.deepEqual(timeCell(null, 'not yet'), { text: 'not yet', value: null });
  assert.equal((timeCell(at) as { value: string }).value, at);
});
