import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { isMutable, KIND_NAMES, KINDS, type KindFacts } from './model.ts';

const DOCUMENT = join(import.meta.dirname, '..', '..', '..', 'docs', 'notifications.md');
const MAIL = { always: 'always', on: 'yes', elsewhere: 'another' } as const;

test('docs/notifications.md lists every kind as it is', () => {
  const rows = readFileSync(DOCUMENT, 'utf8')
    .split('\n')
    .filter((line) => /^\| `[a-z_]+\.[a-z_]+` \|/.test(line));
  const expected = KIND_NAMES.map((kind) => {
    const { severity, mail, when, recipients }: KindFacts = KINDS[kind];
    return `| \`${kind}\` | ${severity} | ${when} | ${recipients} | ${MAIL[mail]} |`;
  });
  assert.deepEqual(rows, expected);
});

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
