/** The audit log: every change leaves an entry, only administrators read it, and nobody alters it unseen. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { AUDIT_ACTIONS } from '../../client/src/audit-words.ts';
import { sealAudit } from '../../src/control-plane/audit/seal-audit.ts';
import { issueMailToken } from '../../src/control-plane/identity/account-store.ts';
import type { OrgId, WebhookId } from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';
import { apiForFile, newName } from '../support/api.ts';
import type { Answer, Page } from '../support/client.ts';
import { makeExec } from '../support/execs.ts';
import { assertError } from '../support/expect.ts';
import { doneByHost } from '../support/file-host.ts';
import { makeGenerations } from '../support/generations.ts';
import { documentOf, endpointsOf } from '../support/openapi.ts';
import { makeKey, makeSession, makeSshKey, type Person, randomPublicKey } from '../support/people.ts';
import { makePort } from '../support/ports.ts';
import { instanceIn } from '../support/states.ts';
import { totpCode } from '../support/totp-code.ts';
import { makeDelivery, makeWebhook } from '../support/webhooks.ts';

const PASSWORD = 'a long passphrase';
const api = await apiForFile({ context: { signups: 'open' } });
const owner = await api.person({ password: PASSWORD });

interface Made {
  readonly id: string;
  readonly secret: string;
}
type Call = () => Promise<Answer<unknown>>;

async function sudo(who: Person): Promise<Record<string, string>> {
  const answer = await api.as(who).post('/v1/auth/sudo', { password: PASSWORD });
  return { cookie: String(answer.headers['set-cookie']).split(';')[0] ?? '' };
}
async function made(who: Person, path: string, json: unknown): Promise<Made> {
  const answer = await api.as(who).post<Made>(path, json);
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}
async function invited(who: Person): Promise<string> {
  const before = api.mails.length;
  await made(owner, `/v1/orgs/${owner.org_id}/invitations`, { email: who.email, role: 'member' });
  return /^berth_mail_\w+$/m.exec(api.mails[before]?.text ?? '')?.[0] ?? '';
}
const of = (org_id: OrgId) => `/v1/orgs/${org_id}`;
const addTotp = async (who: Person) => {
  const options = { json: { type: 'totp', name: 'phone' }, headers: await sudo(who) };
  return api.as(who).call<Made>('POST', '/v1/me/mfa/factors', options);
};
const httpPort = async () => {
  const { id } = await api.instance(owner);
  return `/v1/instances/${id}/ports/${await makePort(api.db, id)}`;
};
const secret = async () => `/v1/instances/${(await api.instance(owner)).id}/secrets/TOKEN`;
const setSecret = (path: string) => api.as(owner).put(path, { value: 'v', hosts: ['api.example.com'] });
const vm = async (state: 'stopped' | 'running') =>
  `/v1/instances/${(await instanceIn(api, owner, state)).id}/vm`;

const exec = async () => {
  const { id } = await instanceIn(api, owner, 'running');
  const { host_id } = api;
  return `/v1/instances/${id}/execs/${await makeExec(api.db, { instance_id: id, host_id }, 'running')}`;
};
async function toldHost<T>(asked: Promise<T>): Promise<T> {
  const { id } = await api.agent.nextCall('exec_control');
  await api.agent.client.answerCall({ id, answer: { result: { outcome: 'done' } } });
  return asked;
}

const files = async () => `/v1/instances/${(await instanceIn(api, owner, 'running')).id}/files`;
const byHost = <T>(asked: Promise<T>) => doneByHost(api.agent, asked);

const deviceLogin = async () => {
  const { body } = await api.client.post<{ user_code: string }>('/v1/auth/device-logins', {});
  return `/v1/auth/device-logins/${body.user_code}`;
};

const ACCOUNTS: Record<string, Call> = {
  register: () =>
    api.client.post('/v1/auth/register', { email: 'new@example.org', password: PASSWORD, name: 'New' }),
  login: () => api.client.post('/v1/auth/login', { email: owner.email, password: PASSWORD }),
  logout: async () => api.as((await makeSession(api.db, owner.user_id)).session).post('/v1/auth/logout'),
  grantSudo: () => api.as(owner).post('/v1/auth/sudo', { password: PASSWORD }),
  changePassword: async () =>
    api
      .as(await api.person({ password: PASSWORD }))
      .post('/v1/auth/password', { current_password: PASSWORD, new_password: 'another long passphrase' }),
  confirmPasswordReset: async () => {
    const { user_id } = await api.person();
    const token = await issueMailToken(api.db, 'password_reset', user_id, null);
    return api.client.post('/v1/auth/password-reset/confirm', { token, new_password: PASSWORD });
  },
  revokeSession: async () =>
    api.as(owner).delete(`/v1/auth/sessions/${(await makeSession(api.db, owner.user_id)).session_id}`),
  revokeOtherSessions: async () => {
    const who = await api.person();
    await makeSession(api.db, who.user_id);
    return api.as(who).call('DELETE', '/v1/auth/sessions');
  },
  confirmDeviceLogin: async () => api.as(owner).post(`${await deviceLogin()}/confirm`),
  refuseDeviceLogin: async () => api.as(owner).delete(await deviceLogin()),
  changeMe: () => api.as(owner).patch('/v1/me', { name: 'Other' }),
  deleteMe: async () => {
    const who = await api.person({ password: PASSWORD });
    return api.as(who).call('DELETE', '/v1/me', { headers: await sudo(who) });
  },
  confirmEmail: async () => {
    const who = await api.person();
    const token = await issueMailToken(api.db, 'confirm_email', who.user_id, 'changed@example.org');
    return api.as(who).post('/v1/me/email/confirm', { token });
  },
  addMfaFactor: async () => addTotp(await api.person({ password: PASSWORD })),
  verifyMfaFactor: async () => {
    const who = await api.person({ password: PASSWORD });
    const { id, secret } = (await addTotp(who)).body;
    return api.as(who).post(`/v1/me/mfa/factors/${id}/verify`, { code: totpCode(secret, Date.now() / 1000) });
  },
  removeMfaFactor: async () => {
    const who = await api.person({ password: PASSWORD });
    const { id } = (await addTotp(who)).body;
    return api.as(who).call('DELETE', `/v1/me/mfa/factors/${id}`, { headers: await sudo(who) });
  },
  setNotificationPreferences: () =>
    api.as(owner).put('/v1/notifications/preferences', { mail: { 'vm.failed': false } }),
  addSshKey: () => api.as(owner).post('/v1/me/ssh-keys', { name: 'a', public_key: randomPublicKey().line }),
  revokeSshKey: async () =>
    api.as(owner).delete(`/v1/me/ssh-keys/${(await makeSshKey(api.db, owner.user_id)).id}`),
};
const ORGANISATIONS: Record<string, Call> = {
  createApiKey: () => api.as(owner).post('/v1/api-keys', { name: 'a', scope: 'vm:read' }),
  rotateApiKey: async () => {
    const { id } = await makeKey(api.db, owner, '*');
    return api.as(owner).call('POST', `/v1/api-keys/${id}/rotate`, { json: {}, headers: await sudo(owner) });
  },
  revokeApiKey: async () => api.as(owner).delete(`/v1/api-keys/${(await makeKey(api.db, owner, '*')).id}`),
  createServiceAccount: () => api.as(owner).post('/v1/service-accounts', { name: 'a', scope: 'vm:read' }),
  deleteServiceAccount: async () => {
    const { id } = await made(owner, '/v1/service-accounts', { name: 'a', scope: 'vm:read' });
    return api.as(owner).delete(`/v1/service-accounts/${id}`);
  },
  createOrg: () => api.as(owner).post('/v1/orgs', { name: 'Second' }),
  changeOrg: () => api.as(owner).patch(of(owner.org_id), { name: 'Renamed' }),
  changeBillingEmail: async () =>
    api.as(owner).call('PUT', `${of(owner.org_id)}/billing-email`, {
      json: { email: 'bills@example.org' },
      headers: await sudo(owner),
    }),
  changeMember: async () => {
    const { user_id } = await api.person({ org_id: owner.org_id, role: 'member' });
    return api.as(owner).patch(`${of(owner.org_id)}/members/${user_id}`, { role: 'billing' });
  },
  removeMember: async () => {
    const { user_id } = await api.person({ org_id: owner.org_id, role: 'member' });
    return api.as(owner).delete(`${of(owner.org_id)}/members/${user_id}`);
  },
  createInvitation: () =>
    api.as(owner).post(`${of(owner.org_id)}/invitations`, { email: 'guest@example.org', role: 'member' }),
  deleteInvitation: async () => {
    const path = `${of(owner.org_id)}/invitations`;
    const { id } = await made(owner, path, { email: 'gone@example.org', role: 'member' });
    return api.as(owner).delete(`${path}/${id}`);
  },
  acceptInvitation: async () => {
    const who = await api.person();
    return api.as(who).post('/v1/invitations/accept', { token: await invited(who) });
  },
};
async function withGeneration(): Promise<string> {
  const { id } = await api.instance(owner);
  await makeGenerations(api.db, id, 1);
  return `/v1/instances/${id}`;
}
const INSTANCES: Record<string, Call> = {
  createInstance: () => api.as(owner).post('/v1/instances', { name: newName() }),
  changeInstance: async () =>
    api.as(owner).patch(`/v1/instances/${(await api.instance(owner)).id}`, { labels: { a: 'b' } }),
  deleteInstance: async () => api.as(owner).delete(`/v1/instances/${(await api.instance(owner)).id}`),
  changeGeneration: async () =>
    api.as(owner).patch(`${await withGeneration()}/generations/1`, { pinned: true }),
  restoreInstance: async () => api.as(owner).post(`${await withGeneration()}/restore`, { generation: 1 }),
  forkInstance: async () => api.as(owner).post(`${await withGeneration()}/fork`, { name: newName() }),
  replaceKeySet: async () =>
    api.as(owner).put(`/v1/instances/${(await api.instance(owner)).id}/ssh-keys`, { ssh_key_ids: [] }),
  startVm: async () => api.as(owner).post(await vm('stopped')),
  stopVm: async () => api.as(owner).delete(await vm('running')),
  restartVm: async () => api.as(owner).post(`${await vm('running')}/restart`),
  suspendVm: async () => api.as(owner).post(`${await vm('running')}/suspend`),
  flushVm: async () => api.as(owner).post(`${await vm('stopped')}/flush`),
  execInVm: async () => {
    const asked = api.as(owner).post(`${await vm('running')}/exec`, { command: ['true'] });
    const { id } = await api.agent.nextCall('exec');
    const result = { exit_code: 0, stdout: '', stderr: '', truncated: false };
    await api.agent.client.answerCall({ id, answer: { result } });
    return asked;
  },
  createPort: async () =>
    api.as(owner).post(`/v1/instances/${(await api.instance(owner)).id}/ports`, { port: 80 }),
  changePort: async () => api.as(owner).patch(await httpPort(), { access: 'public' }),
  openPort: async () => api.as(owner).post(`${await httpPort()}/open`),
  addPortHostname: async () =>
    api.as(owner).post(`${await httpPort()}/hostnames`, { hostname: 'app.example.com' }),
  deletePortHostname: async () => {
    const path = `${await httpPort()}/hostnames`;
    await api.as(owner).post(path, { hostname: 'app.example.com' });
    return api.as(owner).delete(`${path}/app.example.com`);
  },
  deletePort: async () => api.as(owner).delete(await httpPort()),
  setSecret: async () => setSecret(await secret()),
  deleteSecret: async () => {
    const path = await secret();
    await setSecret(path);
    return api.as(owner).delete(path);
  },
  createExec: async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const asked = api.as(owner).post(`/v1/instances/${id}/execs`, { command: ['true'] });
    const call = await api.agent.nextCall('exec_start');
    await api.agent.client.answerCall({ id: call.id, answer: { result: { refused: null } } });
    return asked;
  },
  signalExec: async () => toldHost(api.as(owner).post(`${await exec()}/signal`, { signal: 'SIGTERM' })),
  killExec: async () => toldHost(api.as(owner).delete(await exec())),
  createExecTicket: async () => api.as(owner).post(`${await exec()}/ticket`),
  writeFile: async () => byHost(api.as(owner).call('PUT', `${await files()}?path=/a`)),
  deleteFile: async () => byHost(api.as(owner).delete(`${await files()}?path=/a`)),
  moveFile: async () => byHost(api.as(owner).post(`${await files()}/move`, { from: '/a', to: '/b' })),
  createDirectory: async () => byHost(api.as(owner).post(`${await files()}/directory`, { path: '/a' })),
  createConsoleTicket: async () => api.as(owner).post(`${await vm('running')}/console/ticket`),
};
const webhook = async () => `/v1/webhooks/${(await makeWebhook(api, owner, 'http://127.0.0.1:9/')).id}`;
const WEBHOOKS: Record<string, Call> = {
  createWebhook: () =>
    api.as(owner).post('/v1/webhooks', { name: 'a', url: 'http://127.0.0.1:9/', events: ['*'] }),
  changeWebhook: async () => api.as(owner).patch(await webhook(), { name: 'b' }),
  deleteWebhook: async () => api.as(owner).delete(await webhook()),
  rotateWebhookSecret: async () => api.as(owner).post(`${await webhook()}/rotate-secret`),
  pingWebhook: async () => api.as(owner).post(`${await webhook()}/ping`),
  redeliverWebhookDelivery: async () => {
    const path = await webhook();
    const id = await makeDelivery(api, owner, path.slice('/v1/webhooks/'.length) as WebhookId);
    return api.as(owner).post(`${path}/deliveries/${id}/redeliver`);
  },
  replayWebhook: async () => {
    const since = new Date(Date.now() - 60_000).toISOString();
    return api.as(owner).post(`${await webhook()}/replay`, { since });
  },
};
const CALLS = { ...ACCOUNTS, ...ORGANISATIONS, ...INSTANCES, ...WEBHOOKS };

/** Without an entry, and why. This list only ever shrinks. */
const WITHOUT: Record<string, string> = {
  refresh: 'renews the token of a session that the log has already',
  requestPasswordReset: 'changes nothing, and must not tell whether there is such an account',
  changeEmail: 'changes nothing until the new address is confirmed, which is noted',
  markNotification: 'what one has read concerns nobody else',
  markAllNotifications: 'what one has read concerns nobody else',
  passkeyOptions: 'makes a challenge and nothing else',
  beginOidcSudo: 'makes an address and a cookie; the grant itself is noted',
  resizeExec: 'changes what is shown, and nothing else',
  writeExecInput: 'is part of an exec, whose start is noted',
  askForDeviceLogin: 'makes a code and nothing else; what a person answers is noted',
  takeDeviceLogin:
    'opens its session by the same function as login (test/control-plane/device-logins.test.ts)',
  loginByPasskey: 'opens its session by the same function as login (test/control-plane/passkeys.test.ts)',
};

const seal = () => sealAudit(api.context.db, api.context.audit);

function entriesOf(request_id: string) {
  return api.db.selectFrom('audit_log').selectAll().where('request_id', '=', request_id).execute();
}

describe('every changing route of the API document leaves one entry: actor, address, request', () => {
  const changing = endpointsOf(documentOf(api.app))
    .filter((each) => each.method !== 'GET')
    .map((each) => each.operation.operationId);
  test('each changing route has a case here, and each case its route', () => {
    assert.deepEqual([...Object.keys(CALLS), ...Object.keys(WITHOUT)].sort(), changing.sort());
  });
  for (const [operation, call] of Object.entries(CALLS)) {
    test(operation, async () => {
      const answer = await call();
      assert.ok(answer.status < 300, `${answer.status} ${answer.text}`);
      const entries = await entriesOf(String(answer.headers['x-request-id']));
      assert.equal(entries.length, 1, JSON.stringify(entries));
      const [entry] = entries;
      assert.match(String(entry?.actor), /^usr_[0-9a-z]{26}$/);
      assert.equal(entry?.ip, '127.0.0.1');
      assert.match(String(entry?.action), /^[a-z_]+\.[a-z_]+$/);
      assert.ok(entry?.target);
      assert.doesNotMatch(JSON.stringify(entry?.data), /berth_(live|sess|mail|sudo)|whsec_|passphrase/);
    });
  }
  test('a refused request leaves no entry', async () => {
    const answer = await api.as(owner).post('/v1/api-keys', { name: 'a', scope: 'nonsense' });
    assertError(answer, 'INVALID_REQUEST');
    assert.deepEqual(await entriesOf(String(answer.headers['x-request-id'])), []);
  });
  test("an action of a key is recorded under its creator, with the key's id", async () => {
    const { id, key } = await makeKey(api.db, owner, '*');
    const answer = await api.as(key).post('/v1/api-keys', { name: 'a', scope: 'vm:read' });
    const [entry] = await entriesOf(String(answer.headers['x-request-id']));
    assert.equal(entry?.actor, owner.user_id);
    assert.equal(entry?.data['credential'], id);
  });
});

test('a registration by invitation is recorded in the joined organisation', async () => {
  const email = 'invited@example.org';
  const token = await invited({ ...owner, email });
  const answer = await api.client.post('/v1/auth/register', {
    email,
    password: PASSWORD,
    invitation_token: token,
  });
  assert.equal(answer.status, 201, answer.text);
  const entries = await entriesOf(String(answer.headers['x-request-id']));
  const joined = entries.filter((each) => each.org_id === owner.org_id).map((each) => each.action);
  assert.ok(joined.includes('invitation.accept'), JSON.stringify(entries));
});

describe('reading', () => {
  interface Shown {
    readonly id: string;
    readonly seq: number | null;
  }
  test('owners and administrators read it, newest first; members and billing do not', async () => {
    const expected: Record<Role, number> = { owner: 200, admin: 200, member: 403, billing: 403 };
    for (const [role, status] of Object.entries(expected)) {
      const who = await api.person({ org_id: owner.org_id, role: role as Role });
      const answer = await api.as(who).get<Page<Shown>>('/v1/audit');
      assert.equal(answer.status, status, `${role}: ${answer.text}`);
      if (status !== 200) continue;
      const ids = answer.body.data.map((each) => each.id);
      assert.ok(ids.length > 20);
      assert.deepEqual(ids, ids.toSorted().reverse());
    }
  });
  test('an entry is listed at once, without a number, and keeps its place in the pages when it is sealed', async () => {
    const who = await api.person();
    for (const name of ['a', 'b', 'c', 'd']) await api.as(who).patch('/v1/me', { name });
    const get = async (query: string) => (await api.as(who).get<Page<Shown>>(`/v1/audit?${query}`)).body;
    const before = await get('limit=200');
    assert.deepEqual(
      before.data.map((each) => each.seq),
      [null, null, null, null],
    );
    const first = await get('limit=2');
    await seal();
    const second = await get(`limit=2&cursor=${first.next_cursor}`);
    assert.deepEqual(
      [...first.data, ...second.data].map((each) => each.id),
      before.data.map((each) => each.id),
    );
    assert.deepEqual((await get('limit=200')).data.map((each) => each.seq).toSorted(), [1, 2, 3, 4]);
  });
  test('nobody reads the log of another organisation', async () => {
    const stranger = await api.person();
    assert.deepEqual((await api.as(stranger).get<Page<unknown>>('/v1/audit')).body.data, []);
  });
});

test('all entries above are one chain, which concurrent requests continue', async () => {
  await seal();
  const before = await api.context.audit.verify(api.db, owner.org_id);
  assert.ok(before.entries > 20);
  const requests = Array.from({ length: 40 }, () =>
    api.as(owner).post('/v1/api-keys', { name: 'a', scope: 'vm:read' }),
  );
  await Promise.all([...requests, seal(), seal()]);
  const open = await api.context.audit.verify(api.db, owner.org_id);
  assert.deepEqual([open.broken_at, open.altered], [null, null]);
  assert.equal(open.entries + open.unsealed, before.entries + 40);
  await seal();
  assert.deepEqual(await api.context.audit.verify(api.db, owner.org_id), {
    entries: before.entries + 40,
    broken_at: null,
    unsealed: 0,
    altered: null,
  });
});

test('every action above is one that the console offers as a filter', async () => {
  const rows = await api.db.selectFrom('audit_log').select('action').distinct().execute();
  assert.ok(rows.length > 30);
  assert.deepEqual(
    rows.map(({ action }) => action).filter((each) => !AUDIT_ACTIONS.includes(each)),
    [],
  );
});
