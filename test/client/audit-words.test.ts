import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { AUDIT_ACTIONS, auditDetails, auditIds } from '../../client/src/audit-words.ts';

const credential = 'ak_1';

function details(action: string, data: Record<string, unknown>, target_name: string | null = null): string {
  return auditDetails({ action, data: { credential, ...data }, target_name });
}

test('an audit entry tells what changed in the words of the options, with their units', () => {
  const change = {
    ...{ cpus: 4, memory_mib: 2_048, disk_gib: 20, auto_flush_seconds: 60, idle_timeout_seconds: null },
    ...{ wake_on_connect: false, egress_mode: 'allow', egress_allow: ['a.example', 'b.example'] },
    ...{ keep_last: 24, keep_daily_days: 14, labels: { team: 'web', tier: '1' } },
  };
  assert.equal(
    details('instance.change', { change }),
    'cpus: 4, memory: 2 GiB, disk: 20 GiB, auto-flush: 1m, idle-timeout: off, wake: off, egress: allow, ' +
      'allow: a.example b.example, keep: 24, keep daily: 14 days, labels: team=web tier=1',
  );
  assert.equal(details('instance.change', { change: { memory_mib: 1_500 } }), 'memory: 1500 MiB');
  assert.equal(
    details('generation.change', { generation: 3, change: { name: 'before-upgrade', pinned: false } }),
    'generation: 3, name: before-upgrade, pinned: no',
  );
  // A new name is what changed, although it is the target's present one.
  assert.equal(details('org.change', { name: 'Navy' }, 'Navy'), 'name: Navy');
  assert.equal(details('webhook.rotate_secret', { grace_seconds: 3_600 }, 'hook'), 'grace: 1h');
  assert.equal(
    details('member.change_role', { role: 'admin', previous_role: 'member' }),
    'role: admin, before: member',
  );
  assert.equal(
    details('org.change_quota', { cpus: null, memory_mib: 4_096 }),
    'cpus: unlimited, memory: 4 GiB',
  );
  assert.equal(
    details('notifications.set_preferences', { mail: { 'vm.failed': false, 'vm.recovered': true } }),
    'not mailed: vm.failed',
  );
});

test('an audit entry repeats nothing that it shows elsewhere, and nothing that is not set', () => {
  assert.equal(details('vm.start', { vm_id: 'vm_1' }), '');
  assert.equal(
    details('invitation.create', { email: 'ada@example.org', role: 'admin' }, 'ada@example.org'),
    'role: admin',
  );
  assert.equal(details('auth.login', { user_agent: 'curl/8.5.0' }), 'curl');
  assert.equal(
    details('api_key.create', { scope: '*', expires_at: null, allowed_cidrs: [], service_account_id: null }),
    'scope: all permissions',
  );
  const port = { id: 'port_1', instance_id: 'inst_1', created_at: 'x', updated_at: 'x', hostnames: [] };
  assert.equal(
    details('port.create', {
      ...port,
      port: 80,
      access: 'private',
      url: 'http://w.test',
      hostname: 'w.test',
    }),
    'port: 80, access: private, URL: http://w.test',
  );
  assert.equal(details('port.add_hostname', { hostname: 'w.test' }), 'hostname: w.test');
  assert.equal(details('org.change', { name: 'x'.repeat(500) }).length, 100);
});

test('an audit entry has names for the ids that are known', () => {
  const id = 'inst_01m8d3zkebmetfa674ywmedh33';
  const key = 'key_01m8d3zttmj2ngn103m8wzc7f5';
  const names = new Map([
    [id, 'web'],
    [key, 'laptop'],
  ]);
  const named = (action: string, data: Record<string, unknown>) =>
    auditDetails({ action, data, target_name: 'copy' }, (each) => names.get(each));
  assert.equal(named('instance.fork', { from: id, name: 'copy', generation: 1 }), 'of: web, generation: 1');
  assert.equal(
    named('instance.replace_ssh_keys', { mode: 'list', ssh_keys: [key, 'key_x'] }),
    'keys: laptop, key_x',
  );
  assert.equal(named('instance.replace_ssh_keys', { mode: 'list', ssh_keys: [] }), 'keys: none');
  assert.equal(
    named('instance.replace_ssh_keys', { mode: 'account', ssh_keys: [key] }),
    "keys: all of the creator's account",
  );
  assert.deepEqual(auditIds({ data: { from: id, generation: 1, ssh_keys: [key] } }), [id, key]);
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
