import assert from 'node:assert/strict';
import { test } from 'node:test';
import { wrapped } from './format.ts';

test('a text is wrapped between words, and a longer word gets its own line', () => {
  assert.deepEqual(wrapped('if that was not you', 11), ['if that was', 'not you']);
  assert.deepEqual(wrapped('is SHA256:abcdefghijkl allowed', 10), ['is', 'SHA256:abcdefghijkl', 'allowed']);
  assert.deepEqual(wrapped('a b', Number.POSITIVE_INFINITY), ['a b']);
});
