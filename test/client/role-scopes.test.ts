import assert from 'node:assert/strict';
import { test } from 'node:test';
import { scopeOfRole } from '../../client/src/words.ts';
import { ALL_SCOPES, parseScope, ROLE_SCOPES } from '../../src/control-plane/identity/permissions.ts';
import { ROLES } from '../../src/shared/roles.ts';

test("the client's scope of a role is exactly what the server allows the role", () => {
  for (const role of ROLES) {
    const allowed = ALL_SCOPES.filter((scope) => ROLE_SCOPES[role].includes(scope));
    assert.deepEqual(parseScope(scopeOfRole(role)), allowed, role);
  }
});
