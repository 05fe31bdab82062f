import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isMutable } from './model.ts';

test('kinds of security cannot be muted', () => {
  const kinds = [
    'account.locked',
    'login.new_place',
    'mfa.added',
    'mfa.removed',
    'password.changed',
  ] as const;
  for (const kind of kinds) {
    assert.ok(!isMutable(kind), kind);
  }
});
