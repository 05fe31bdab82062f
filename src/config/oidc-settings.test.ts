import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../shared/ids.ts';
import { parseConfig } from './config.ts';

const BASE = {
  BERTH_OIDC_ISSUER: 'https://id.example.org/realms/main/',
  BERTH_OIDC_CLIENT_ID: 'berth',
  BERTH_OIDC_CLIENT_SECRET: 'hidden-secret',
};
const problems = (env: Record<string, string>) => {
  const result = parseConfig(env, '/srv');
  return result.ok ? [] : result.problems;
};

test('an OpenID provider needs issuer, client id and secret, and groups name roles in organisations', () => {
  const org_id = newId('org');
  const given = { ...BASE, BERTH_OIDC_GROUPS: `/berth/staff=${org_id}:member, a=b=${org_id}:owner` };
  const result = parseConfig(given, '/srv');
  assert.ok(result.ok);
  assert.deepEqual(result.config.oidc, {
    issuer: 'https://id.example.org/realms/main',
    client_id: 'berth',
    client_secret: 'hidden-secret',
    groups: [
      { group: '/berth/staff', org_id, role: 'member' },
      { group: 'a=b', org_id, role: 'owner' },
    ],
  });
  const none = parseConfig({}, '/srv');
  assert.ok(none.ok && none.config.oidc === null && none.config.password_login);
});

test('each missing or bad setting of a provider is one line that does not show the secret', () => {
  const missing = problems({ BERTH_OIDC_ISSUER: BASE.BERTH_OIDC_ISSUER });
  assert.equal(missing.length, 2);
  assert.match(missing[0] ?? '', /^BERTH_OIDC_CLIENT_ID is missing; BERTH_OIDC_ISSUER is set/);
  for (const issuer of [
    'id.example.org',
    'http://id.example.org',
    'https://id.example.org?a=b',
    'https://a@b.c',
  ]) {
    const found = problems({ ...BASE, BERTH_OIDC_ISSUER: issuer });
    assert.equal(found.length, 1, issuer);
    assert.match(found[0] ?? '', /^BERTH_OIDC_ISSUER: .* is not valid; expected the provider's issuer/);
  }
  assert.deepEqual(problems({ ...BASE, BERTH_OIDC_ISSUER: 'http://127.0.0.1:8080' }), []);
  for (const groups of [
    'staff',
    'staff=org_1:member',
    `staff=${newId('org')}:root`,
    `=${newId('org')}:member`,
  ]) {
    const found = problems({ ...BASE, BERTH_OIDC_GROUPS: groups });
    assert.match(found.join('\n'), /^BERTH_OIDC_GROUPS: .* expected GROUP=ORGANISATION:ROLE[^\n]*$/);
    assert.ok(!found.join().includes('hidden-secret'));
  }
});

test('passwords are switched off only where there is another way to log in', () => {
  const off = problems({ BERTH_PASSWORD_LOGIN: 'off' });
  assert.match(off[0] ?? '', /^BERTH_OIDC_ISSUER is missing; BERTH_PASSWORD_LOGIN is set/);
  assert.deepEqual(problems({ ...BASE, BERTH_PASSWORD_LOGIN: 'off' }), []);
  assert.match(problems({ ...BASE, BERTH_PASSWORD_LOGIN: 'no' })[0] ?? '', /expected one of on, off/);
});
