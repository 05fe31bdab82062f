/** The document of permissions, and what roles may do. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ALL_SCOPES, ROLE_SCOPES } from '../../src/control-plane/identity/permissions.ts';
import { permissionsText } from '../../src/control-plane/permissions-reference.ts';

test('it names every scope and every role', async () => {
  const text = await permissionsText();
  for (const scope of ALL_SCOPES) assert.ok(text.includes(`\n| \`${scope}\` |`), scope);
  assert.ok(text.includes(`| scope | ${['owner', 'admin', 'member', 'billing'].join(' | ')} |`));
});

test('owners and admins have every scope; members may also write instances, and nobody else reads the audit log', () => {
  assert.deepEqual([ROLE_SCOPES.owner, ROLE_SCOPES.admin], [ALL_SCOPES, ALL_SCOPES]);
  assert.ok(ROLE_SCOPES.member.includes('instances:write') && ROLE_SCOPES.member.includes('vm:write'));
  for (const scope of ['instances:write', 'vm:write'] as const) {
    assert.ok(!ROLE_SCOPES.billing.includes(scope), scope);
  }
  for (const role of ['member', 'billing'] as const) {
    assert.ok(!ROLE_SCOPES[role].includes('audit:read'));
    assert.ok(!ROLE_SCOPES[role].includes('webhooks:write'));
  }
});
