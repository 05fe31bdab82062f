import assert from 'node:assert/strict';
import { test } from 'node:test';
import { auditDetails } from '../../client/src/audit-words.ts';

test('an audit entry tells what changed, and not what it shows elsewhere', () => {
  const credential = 'ak_1';
  assert.equal(
    auditDetails({ credential, change: { cpus: 4, idle_timeout_seconds: null } }),
    'cpus: 4, idle_timeout_seconds: none',
  );
  assert.equal(auditDetails({ credential, generation: 3 }), 'generation: 3');
  assert.equal(
    auditDetails({ credential, generation: 3, change: { name: 'before-upgrade', pinned: true } }),
    'generation: 3, name: before-upgrade, pinned: true',
  );
  assert.equal(auditDetails({ change: { labels: { team: 'web', tier: '1' } } }), 'labels: team=web tier=1');
  assert.equal(auditDetails({ mode: 'list', ssh_keys: [] }), 'mode: list, ssh_keys: none');
  assert.equal(auditDetails({ credential, vm_id: 'vm_1' }), '');
  assert.equal(auditDetails({ name: 'x'.repeat(500) }).length, 86);
});
