import assert from 'node:assert/strict';
import { test } from 'node:test';
import { nearest } from './nearest.ts';

test('a mistyped word gets the nearest known one', () => {
  const known = ['start', 'stop', 'show', 'set', 'ls', 'rm'];
  assert.equal(nearest('strat', known), 'start');
  assert.equal(nearest('shwo', known), 'show');
  assert.equal(nearest('sett', known), 'set');
  assert.equal(nearest('wbe', ['web', 'db']), 'web', 'two letters that changed places are one edit');
});

test('a short word has no neighbours, so none is suggested that destroys', () => {
  assert.equal(nearest('vm', ['rm', 'ls']), undefined);
  assert.equal(nearest('key', ['set', 'rm']), undefined);
  assert.equal(nearest('nope', ['copy']), undefined);
});
