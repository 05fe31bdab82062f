import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { AUDIT_ACTIONS, auditDetails } from '../../client/src/audit-words.ts';

test('an audit entry tells what changed, and not what it shows elsewhere', () => {
  const credential = 'ak_1';
  assert.equal(
    auditDetails({ credential, change: { cpus: 4, idle_timeout_seconds: null } }, null),
    'cpus: 4, idle_timeout_seconds: none',
  );
  assert.equal(auditDetails({ credential, generation: 3 }, null), 'generation: 3');
  assert.equal(
    auditDetails({ credential, generation: 3, change: { name: 'before-upgrade', pinned: true } }, null),
    'generation: 3, name: before-upgrade, pinned: true',
  );
  assert.equal(
    auditDetails({ change: { labels: { team: 'web', tier: '1' } } }, null),
    'labels: team=web tier=1',
  );
  assert.equal(auditDetails({ mode: 'list', ssh_keys: [] }, null), 'mode: list, ssh_keys: none');
  assert.equal(auditDetails({ credential, vm_id: 'vm_1' }, null), '');
  assert.equal(auditDetails({ email: 'ada@example.org', role: 'admin' }, 'ada@example.org'), 'role: admin');
  assert.equal(auditDetails({ user_agent: 'curl/8.5.0' }, null), 'curl');
  assert.equal(auditDetails({ scope: '*', expires_at: null, allowed_cidrs: [] }, null), 'scope: *');
  assert.equal(auditDetails({ name: 'x'.repeat(500) }, null).length, 86);
});

test('people can filter the audit log by every action that the server records', () => {
  const source = join(import.meta.dirname, '../../src');
  const files = globSync('**/*.ts', { cwd: source }).filter((path) => !path.endsWith('.test.ts'));
  const recorded = files.flatMap((path) =>
    [...readFileSync(join(source, path), 'utf8').matchAll(/\baction: '([a-z_]+\.[a-z_]+)'/g)].map(
      ([, action = '']) => action,
    ),
  );
  assert.ok(recorded.length > 30, 'the pattern finds the actions');
  assert.deepEqual([...new Set(recorded)].filter((each) => !AUDIT_ACTIONS.includes(each)).sort(), []);
});
