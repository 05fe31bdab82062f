/** What a provider's groups give and take, at each check of the background task. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { checkIdentities } from '../../src/control-plane/identity/login-at-provider.ts';
import { present } from '../../src/shared/assert.ts';
import { newId, type OrgId, type UserId } from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';
import { apiForFile } from '../support/api.ts';
import { OidcBrowser } from '../support/oidc-browser.ts';
import { oidcContext, startProvider } from '../support/oidc-provider.ts';
import { makeKey } from '../support/people.ts';

const PUBLIC = 'http://berth.test';
const [team, lab, gone] = [newId('org'), newId('org'), newId('org')];
const provider = await startProvider([`${PUBLIC}/v1/auth/oidc/callback`]);
after(() => provider.close());
const groups = [
  { group: 'staff', org_id: team, role: 'member' },
  { group: 'leads', org_id: team, role: 'admin' },
  { group: 'bosses', org_id: lab, role: 'owner' },
  { group: 'staff', org_id: gone, role: 'member' },
] as const;
const api = await apiForFile({ context: oidcContext(provider, PUBLIC, groups) });
const { db } = api;
const owner = await api.person();
for (const id of [team, lab]) {
  await db.insertInto('organisations').values({ id, name: 'Team', billing_email: 't@example.org' }).execute();
}
await db.insertInto('memberships').values({ org_id: team, user_id: owner.user_id, role: 'owner' }).execute();

let people = 0;
async function newPerson(...of: string[]) {
  const sub = `person-${++people}`;
  const email = `${sub}@example.org`;
  provider.accounts.set(sub, { email, email_verified: true, groups: of });
  const browser = new OidcBrowser(api);
  assert.equal((await browser.logIn(sub)).place, '/');
  const session = present(await browser.session(), 'a session');
  const { id } = (await api.as(session).get<{ id: UserId }>('/v1/me')).body;
  const setGroups = (...now: string[]) =>
    provider.accounts.set(sub, { email, email_verified: true, groups: now });
  return { sub, id, email, session, browser, setGroups };
}

const context = () => ({ ...api.context, ...present(api.context.oidc, 'a provider') });

/** Time passes for one user, and the task runs. */
async function checkLater(user_id: UserId): Promise<void> {
  const long_ago = new Date(Date.now() - 46 * 60_000);
  await db.updateTable('identities').set({ checked_at: long_ago }).where('user_id', '=', user_id).execute();
  await checkIdentities(context(), api.context.log, new AbortController().signal);
}

const roleIn = async (user_id: UserId, org_id: OrgId = team): Promise<Role | undefined> =>
  (
    await db
      .selectFrom('memberships')
      .select('role')
      .where('user_id', '=', user_id)
      .where('org_id', '=', org_id)
      .executeTakeFirst()
  )?.role;

async function auditActions(org_id: OrgId, target: string): Promise<string[]> {
  const rows = await db
    .selectFrom('audit_log')
    .select('action')
    .where('org_id', '=', org_id)
    .where('target', '=', target)
    .orderBy('id')
    .execute();
  return rows.map(({ action }) => action);
}

describe('a check of a user at the provider', () => {
  test('changes a role, ends the membership with its keys, and is in the audit log', async () => {
    const who = await newPerson('staff');
    const key = await makeKey(db, { user_id: who.id, org_id: team }, '*');
    who.setGroups('staff', 'leads');
    await checkLater(who.id);
    assert.equal(await roleIn(who.id), 'admin');
    who.setGroups('visitors');
    await checkLater(who.id);
    assert.equal(await roleIn(who.id), undefined);
    assert.equal((await api.as(key.key).get('/v1/instances')).status, 401);
    const me = await api.as(who.session).get('/v1/me');
    assert.equal(me.status, 200, 'the session goes on');
    const created = await api.as(who.session).post('/v1/instances', { name: 'web' });
    assert.equal(created.status, 429, 'in an organisation that allows nothing');
    assert.deepEqual(await auditActions(team, who.id), [
      'member.add_by_group',
      'auth.register_at_provider',
      'member.change_role_by_group',
      'member.remove_by_group',
    ]);
  });

  test('waits until it is time, and uses each refresh token once', async () => {
    const who = await newPerson('staff');
    const before = provider.refreshes();
    await checkIdentities(context(), api.context.log, new AbortController().signal);
    assert.equal(provider.refreshes(), before);
    // Two processes at once: oidc-provider voids everything if a token is used twice.
    await db
      .updateTable('identities')
      .set({ checked_at: new Date(0) })
      .where('user_id', '=', who.id)
      .execute();
    const run = () => checkIdentities(context(), api.context.log, new AbortController().signal);
    await Promise.all([run(), run()]);
    assert.equal(provider.refreshes(), before + 1);
    await checkLater(who.id);
    assert.equal(provider.refreshes(), before + 2);
    assert.equal(await roleIn(who.id), 'member');
  });

  test('ends every session where the provider refuses, and keeps memberships and keys', async () => {
    const who = await newPerson('staff');
    const key = await makeKey(db, { user_id: who.id, org_id: team }, '*');
    provider.accounts.delete(who.sub);
    await checkLater(who.id);
    assert.equal((await api.as(who.session).get('/v1/me')).status, 401);
    assert.equal(await who.browser.session(), null);
    assert.equal(await roleIn(who.id), 'member');
    assert.equal((await api.as(key.key).get('/v1/instances')).status, 200);
    assert.ok((await auditActions(team, who.id)).includes('auth.end_sessions_by_provider'));
  });

  test('changes nothing while the provider does not answer', async () => {
    const who = await newPerson('staff');
    who.setGroups();
    provider.state.down = true;
    await checkLater(who.id);
    provider.state.down = false;
    assert.equal(await roleIn(who.id), 'member');
    assert.equal((await api.as(who.session).get('/v1/me')).status, 200);
    // The claim of the failed check has an end.
    await db
      .updateTable('identities')
      .set({ claimed_until: new Date(0) })
      .where('user_id', '=', who.id)
      .execute();
    await checkLater(who.id);
    assert.equal(await roleIn(who.id), undefined);
  });

  test('leaves a membership given by hand as it is', async () => {
    const who = await newPerson('staff');
    const by_hand = { role: 'billing', by_groups: false } as const;
    await db.updateTable('memberships').set(by_hand).where('user_id', '=', who.id).execute();
    who.setGroups('leads');
    await checkLater(who.id);
    assert.equal(await roleIn(who.id), 'billing');
    who.setGroups();
    await checkLater(who.id);
    assert.equal(await roleIn(who.id), 'billing');
  });

  test('keeps the last owner of an organisation', async () => {
    const who = await newPerson('bosses');
    assert.equal(await roleIn(who.id, lab), 'owner');
    who.setGroups();
    await checkLater(who.id);
    assert.equal(await roleIn(who.id, lab), 'owner');
    assert.ok((await auditActions(lab, who.id)).includes('member.keep_last_owner'));
    const heir = await newPerson('bosses');
    await checkLater(who.id);
    assert.equal(await roleIn(who.id, lab), undefined);
    assert.equal(await roleIn(heir.id, lab), 'owner');
  });
});

describe('a membership by groups', () => {
  test('is marked, and its role is not changed by hand; the member may be removed, until the next check', async () => {
    const who = await newPerson('staff');
    const path = `/v1/orgs/${team}/members/${who.id}`;
    const as_owner = api.as(owner);
    const member = await as_owner.get<{ by_groups: boolean }>(path, { headers: { 'berth-org': team } });
    assert.equal(member.body.by_groups, true);
    const change = await as_owner.call('PATCH', path, {
      json: { role: 'admin' },
      headers: { 'berth-org': team },
    });
    assert.equal(change.status, 409);
    assert.match(change.body.error.message, /group at 127\.0\.0\.1/);
    const removed = await as_owner.call('DELETE', path, { headers: { 'berth-org': team } });
    assert.equal(removed.status, 204);
    await checkLater(who.id);
    assert.equal(await roleIn(who.id), 'member');
  });
});

test('a session lasts an hour where the provider gives no refresh token', async () => {
  provider.state.refresh_tokens = false;
  const who = await newPerson('staff');
  provider.state.refresh_tokens = true;
  const sessions = await db.selectFrom('sessions').select('ends_at').where('user_id', '=', who.id).execute();
  const left_s = ((sessions[0]?.ends_at.getTime() ?? 0) - Date.now()) / 1000;
  assert.ok(left_s > 3_500 && left_s <= 3_600, `${left_s} s`);
});

test('the database holds no refresh token in the clear', async () => {
  const who = await newPerson('staff');
  const { refresh_token } = await db
    .selectFrom('identities')
    .select('refresh_token')
    .where('user_id', '=', who.id)
    .executeTakeFirstOrThrow();
  const opened = api.context.oidc?.identities.open(
    present(refresh_token, 'a token'),
    `${provider.issuer} ${who.sub}`,
  );
  assert.ok(opened);
  assert.ok(!refresh_token?.includes(opened));
});
