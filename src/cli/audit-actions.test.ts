import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { AUDIT_ACTIONS } from './audit-actions.ts';

const SOURCE = join(import.meta.dirname, '..');
/** `action: 'vm.exec'`, and the words of calls that append entries themselves. */
const WRITTEN = /\baction: '([a-z_]+\.[a-z_]+)'/g;

test('the help of the audit log lists every action that the server records', () => {
  const files = globSync('**/*.ts', { cwd: SOURCE }).filter((path) => !path.endsWith('.test.ts'));
  const recorded = files.flatMap((path) =>
    [...readFileSync(join(SOURCE, path), 'utf8').matchAll(WRITTEN)].map(([, action = '']) => action),
  );
  assert.ok(recorded.length > 30, 'the pattern finds the actions');
  assert.deepEqual([...new Set(recorded)].filter((each) => !AUDIT_ACTIONS.includes(each)).sort(), []);
});
