/** A login has all scopes of its role, and keys created with it have no more. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { scopeOfRole } from '../../client/src/words.ts';
import { ROLES } from '../../src/shared/roles.ts';
import { apiForFile } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeServiceAccount } from '../support/people.ts';

const api = await apiForFile();
const PASSWORD = 'correct horse battery';
const company = await api.person();

for (const role of ROLES) {
  test(`the login of ${role === 'owner' || role === 'admin' ? 'an' : 'a'} ${role} may what the role may, and so may its keys`, async () => {
    const { email } = await api.person({ password: PASSWORD, org_id: company.org_id, role });
    const cli = new Cli({ BERTH_URL: api.origin });
    const ran = await cli.run(['login', '--email', email, '--password-stdin'], PASSWORD);
    assert.deepEqual([ran.code, ran.err], [0, '']);
    await cli.done('api-key', 'create', 'mine');
    const keys = await cli.json<{ name: string; scope: string }[]>('api-key', 'ls');
    assert.deepEqual(
      keys.map(({ scope }) => new Set(scope.split(' '))),
      Array(2).fill(new Set(scopeOfRole(role).split(' '))),
    );
    await cli.done('ls');
  });
}

test('a key of a service account has its scope unless another is said', async () => {
  const { email } = await api.person({ password: PASSWORD, org_id: company.org_id, role: 'admin' });
  const id = await makeServiceAccount(api.db, company.org_id, 'instances:read vm:write');
  const cli = new Cli({ BERTH_URL: api.origin });
  assert.equal((await cli.run(['login', '--email', email, '--password-stdin'], PASSWORD)).code, 0);
  const made = await cli.json<{ scope: string }>('api-key', 'create', 'ci', '--service-account', id);
  assert.equal(made.scope, 'instances:read vm:write');
});

test('a login without --org is in the organisation that the account first belonged to', async () => {
  const who = await api.person({ password: PASSWORD });
  const membership = { org_id: company.org_id, user_id: who.user_id, role: 'member' } as const;
  await api.db.insertInto('memberships').values(membership).execute();
  const cli = new Cli({ BERTH_URL: api.origin });
  for (const [args, org_id] of [
    [[], who.org_id],
    [['--org', company.org_id], company.org_id],
  ] as const) {
    const ran = await cli.run(['login', '--email', who.email, '--password-stdin', ...args], PASSWORD);
    assert.equal(ran.code, 0, ran.err);
    assert.equal((await cli.json<{ org: { id: string } }>('whoami')).org.id, org_id);
  }
});
