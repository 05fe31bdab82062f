/**
 * For the authorisation test: defines the permission that each endpoint needs, and creates the resources in its path.
 */

import type { Scope } from '../../src/control-plane/identity/permissions.ts';
import { newSecret } from '../../src/control-plane/webhooks/attempt.ts';
import { newId } from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';
import { newName, type TestApi } from './api.ts';
import { makeGenerations } from './generations.ts';
import { execs, files, ports, secrets } from './guest-endpoint-cases.ts';
import {
  makeKey,
  makeNotification,
  makeServiceAccount,
  makeSession,
  makeSshKey,
  type Person,
  randomPublicKey,
} from './people.ts';
import { makeDelivery } from './webhooks.ts';

export type PathIds = Readonly<Record<string, string>>;

export interface EndpointCase {
  /** `session`: only a user's session; a key gets 403. `public`: no credential. */
  readonly need: Scope | 'session' | 'public';
  /** An alternative scope. */
  readonly or?: Scope;
  /** A user also needs one of these roles. */
  readonly roles?: readonly Role[];
  /** Also needs a sudo grant. */
  readonly sudo?: boolean;
  /** The error for keys on a route that needs a session. Default: FORBIDDEN. */
  readonly to_keys?: 'UNAUTHENTICATED';
  /** The resource belongs to its creator, not to the organisation. */
  readonly personal?: boolean;
  /** Creates the resource of `who` that the path names. Absent: the path names none. */
  readonly resource?: (who: Person) => Promise<PathIds>;
  /** The permission of a service account, if it differs from a user's. */
  readonly of_service_account?: (who: Person) => Promise<PathIds>;
  readonly body?: () => unknown;
  /** What the route needs in its query. */
  readonly query?: string;
}

const ADMINS: readonly Role[] = ['owner', 'admin'];
const PUBLIC: EndpointCase = { need: 'public' };
const SESSION: EndpointCase = { need: 'session' };
const TOKEN = () => ({ token: 'x' });

/** In the organisation that operates the installation. */
const OPERATOR: Record<string, EndpointCase> = Object.fromEntries(
  ['', '/hosts', '/images', '/organisations'].map((path) => [
    `GET /v1/operator${path}`,
    { need: 'session', roles: ADMINS },
  ]),
);

/** @returns by name, `POST /v1/instances/{id}/vm` */
export function endpointCases(api: TestApi): Record<string, EndpointCase> {
  return {
    ...accounts(api),
    ...organisations(api),
    ...keys(api),
    ...machines(api),
    ...ports(api),
    ...secrets(api),
    ...execs(api),
    ...files(api),
    ...webhooks(api),
    ...told(api),
    ...OPERATOR,
  };
}

function accounts({ db }: TestApi): Record<string, EndpointCase> {
  const factor = async ({ user_id }: Person) => {
    const id = newId('mfa');
    await db.insertInto('mfa_factors').values({ id, user_id, type: 'totp', name: 'phone' }).execute();
    return { id };
  };
  const session = async ({ user_id }: Person) => ({ id: (await makeSession(db, user_id)).session_id });
  const ssh_key = async ({ user_id }: Person) => ({ id: (await makeSshKey(db, user_id)).id });
  return {
    'POST /v1/auth/register': PUBLIC,
    'POST /v1/auth/login': PUBLIC,
    'POST /v1/auth/refresh': PUBLIC,
    'GET /v1/auth/oidc/login': PUBLIC,
    'GET /v1/auth/oidc/callback': PUBLIC,
    'POST /v1/auth/oidc/sudo': { need: 'session', to_keys: 'UNAUTHENTICATED' },
    'POST /v1/auth/device-logins': PUBLIC,
    'POST /v1/auth/device-logins/token': PUBLIC,
    // They belong to nobody until somebody answers.
    'GET /v1/auth/device-logins/{user_code}': SESSION,
    'POST /v1/auth/device-logins/{user_code}/confirm': SESSION,
    'DELETE /v1/auth/device-logins/{user_code}': SESSION,
    'POST /v1/auth/password-reset': PUBLIC,
    'POST /v1/auth/password-reset/confirm': PUBLIC,
    'POST /v1/auth/passkey/options': PUBLIC,
    'POST /v1/auth/passkey': PUBLIC,
    'POST /v1/auth/logout': SESSION,
    'POST /v1/auth/password': {
      need: 'session',
      body: () => ({ current_password: 'x', new_password: 'twelve characters' }),
    },
    'POST /v1/auth/sudo': {
      need: 'session',
      to_keys: 'UNAUTHENTICATED',
      body: () => ({ password: 'whatever it is' }),
    },
    'GET /v1/auth/sessions': SESSION,
    'DELETE /v1/auth/sessions': SESSION,
    'DELETE /v1/auth/sessions/{id}': { need: 'session', resource: session },
    'GET /v1/me': SESSION,
    'PATCH /v1/me': SESSION,
    'DELETE /v1/me': { need: 'session', sudo: true },
    'PUT /v1/me/email': { need: 'session', body: () => ({ email: 'a@example.org', password: 'x' }) },
    'POST /v1/me/email/confirm': { need: 'session', body: TOKEN },
    'GET /v1/me/mfa/factors': SESSION,
    'POST /v1/me/mfa/factors': {
      need: 'session',
      sudo: true,
      body: () => ({ type: 'totp', name: 'phone' }),
    },
    'POST /v1/me/mfa/factors/{id}/verify': {
      need: 'session',
      resource: factor,
      body: () => ({ code: '123456' }),
    },
    'DELETE /v1/me/mfa/factors/{id}': { need: 'session', sudo: true, resource: factor },
    'GET /v1/me/ssh-keys': { need: 'ssh_keys:read', personal: true },
    'POST /v1/me/ssh-keys': {
      need: 'ssh_keys:write',
      personal: true,
      body: () => ({ name: 'a', public_key: randomPublicKey().line }),
    },
    'DELETE /v1/me/ssh-keys/{id}': { need: 'ssh_keys:write', personal: true, resource: ssh_key },
  };
}

function organisations(api: TestApi): Record<string, EndpointCase> {
  const { db } = api;
  const organisation = async ({ org_id }: Person) => ({ id: org_id });
  const member = async ({ org_id }: Person) => ({
    id: org_id,
    user_id: (await api.person({ org_id, role: 'member' })).user_id,
  });
  const invitation = async ({ org_id, user_id }: Person) => {
    const id = newId('inv');
    await db
      .insertInto('invitations')
      .values({
        id,
        org_id,
        email: `${id}@example.org`,
        role: 'member',
        token_hash: Buffer.from(id),
        invited_by: user_id,
        expires_at: new Date(Date.now() + 3_600_000),
      })
      .execute();
    return { id: org_id, invitation_id: id };
  };
  const admins = { need: 'session', roles: ADMINS } as const;
  const members = '/v1/orgs/{id}/members';
  const invitations = '/v1/orgs/{id}/invitations';
  return {
    'GET /v1/orgs': SESSION,
    'POST /v1/orgs': { need: 'session', body: () => ({ name: 'Org' }) },
    'GET /v1/orgs/{id}': { need: 'org:read', resource: organisation },
    'GET /v1/orgs/{id}/quota': { need: 'org:read', resource: organisation },
    'GET /v1/orgs/{id}/ssh-keys': { need: 'ssh_keys:read', resource: organisation },
    'PATCH /v1/orgs/{id}': { need: 'org:write', roles: ADMINS, resource: organisation },
    'PUT /v1/orgs/{id}/billing-email': {
      need: 'session',
      roles: [...ADMINS, 'billing'],
      sudo: true,
      resource: organisation,
      body: () => ({ email: 'bills@example.org' }),
    },
    [`GET ${members}`]: { ...admins, resource: organisation },
    [`GET ${members}/{user_id}`]: { ...admins, resource: member },
    [`PATCH ${members}/{user_id}`]: { ...admins, resource: member, body: () => ({ role: 'billing' }) },
    [`DELETE ${members}/{user_id}`]: { ...admins, resource: member },
    [`POST ${invitations}`]: {
      ...admins,
      resource: organisation,
      body: () => ({ email: `${newName()}@example.org`, role: 'member' }),
    },
    [`GET ${invitations}`]: { ...admins, resource: organisation },
    [`DELETE ${invitations}/{invitation_id}`]: { ...admins, resource: invitation },
    'POST /v1/invitations/accept': { need: 'session', body: TOKEN },
    'GET /v1/audit': { need: 'audit:read', roles: ADMINS },
  };
}

function keys({ db }: TestApi): Record<string, EndpointCase> {
  const key = async (who: Person) => ({ id: (await makeKey(db, who, '*')).id });
  const service_account = async ({ org_id }: Person) => ({ id: await makeServiceAccount(db, org_id, '*') });
  return {
    'POST /v1/api-keys': {
      need: 'api_keys:write',
      personal: true,
      body: () => ({ name: 'a', scope: 'api_keys:write' }),
    },
    'GET /v1/api-keys': { need: 'api_keys:read', personal: true },
    'GET /v1/api-keys/{id}': {
      need: 'api_keys:read',
      personal: true,
      resource: key,
      // The service account of the key that is created later.
      of_service_account: async () => ({ id: newId('ak') }),
    },
    'DELETE /v1/api-keys/{id}': { need: 'api_keys:write', personal: true, resource: key },
    'POST /v1/api-keys/{id}/rotate': { need: 'session', sudo: true, personal: true, resource: key },
    'GET /v1/service-accounts': { need: 'api_keys:read', roles: ADMINS },
    'POST /v1/service-accounts': {
      need: 'api_keys:write',
      roles: ADMINS,
      body: () => ({ name: 'robot', scope: 'api_keys:write' }),
    },
    'GET /v1/service-accounts/{id}': { need: 'api_keys:read', roles: ADMINS, resource: service_account },
    'DELETE /v1/service-accounts/{id}': { need: 'api_keys:write', roles: ADMINS, resource: service_account },
  };
}

function machines(api: TestApi): Record<string, EndpointCase> {
  const instance = async (who: Person) => ({ id: (await api.instance(who)).id });
  const generation = async (who: Person) => {
    const { id } = await api.instance(who);
    await makeGenerations(api.db, id, 1);
    return { id, generation: '1' };
  };
  return {
    'GET /v1/images': { need: 'instances:read' },
    'POST /v1/instances': { need: 'instances:write', body: () => ({ name: newName() }) },
    'GET /v1/instances': { need: 'instances:read' },
    'GET /v1/instances/{id}': { need: 'instances:read', resource: instance },
    'PATCH /v1/instances/{id}': { need: 'instances:write', resource: instance },
    'DELETE /v1/instances/{id}': { need: 'instances:write', resource: instance },
    'GET /v1/instances/{id}/generations': { need: 'instances:read', resource: instance },
    'PATCH /v1/instances/{id}/generations/{generation}': { need: 'instances:write', resource: generation },
    'POST /v1/instances/{id}/restore': {
      need: 'instances:write',
      resource: generation,
      body: () => ({ generation: 1 }),
    },
    'POST /v1/instances/{id}/fork': {
      need: 'instances:write',
      resource: generation,
      body: () => ({ name: newName() }),
    },
    'GET /v1/instances/{id}/vm': { need: 'vm:read', resource: instance },
    'POST /v1/instances/{id}/vm': { need: 'vm:write', resource: instance },
    'DELETE /v1/instances/{id}/vm': { need: 'vm:write', resource: instance },
    'POST /v1/instances/{id}/vm/restart': { need: 'vm:write', resource: instance },
    'POST /v1/instances/{id}/vm/suspend': { need: 'vm:write', resource: instance },
    'POST /v1/instances/{id}/vm/flush': { need: 'vm:write', resource: instance },
    'GET /v1/instances/{id}/vm/console': { need: 'vm:read', resource: instance },
    'POST /v1/instances/{id}/vm/console/ticket': { need: 'vm:write', resource: instance },
    'GET /v1/instances/{id}/vm/egress/denied': { need: 'vm:read', resource: instance },
    'GET /v1/instances/{id}/vm/metrics': { need: 'vm:read', resource: instance },
    'GET /v1/instances/{id}/metrics': { need: 'vm:read', resource: instance },
    'POST /v1/instances/{id}/vm/exec': {
      need: 'vm:write',
      resource: instance,
      body: () => ({ command: ['true'] }),
    },
    'GET /v1/instances/{id}/ssh': { need: 'vm:read', resource: instance },
    'GET /v1/instances/{id}/ssh-keys': { need: 'ssh_keys:read', resource: instance },
    'PUT /v1/instances/{id}/ssh-keys': {
      need: 'ssh_keys:write',
      roles: ['owner', 'admin', 'member'],
      resource: instance,
      body: () => ({ mode: 'account' }),
    },
  };
}

function webhooks(api: TestApi): Record<string, EndpointCase> {
  const { db, context } = api;
  const webhook = async ({ org_id }: Person) => {
    const id = newId('wh');
    const secret = context.webhooks.secrets.seal(newSecret(), id);
    const url = 'http://127.0.0.1:9/';
    const row = { id, org_id, name: 'hook', url, events: ['*'], secret, created_by: 'test' };
    await db.insertInto('webhooks').values(row).execute();
    return { id };
  };
  const delivery = async (who: Person) => {
    const { id } = await webhook(who);
    const delivery_id = await makeDelivery(api, who, id);
    return { id, delivery_id };
  };
  const write = { need: 'webhooks:write', roles: ADMINS } as const;
  const one = '/v1/webhooks/{id}';
  return {
    'POST /v1/webhooks': {
      ...write,
      body: () => ({ name: newName(), url: 'http://127.0.0.1:9/', events: ['vm.started'] }),
    },
    'GET /v1/webhooks': { need: 'webhooks:read' },
    [`GET ${one}`]: { need: 'webhooks:read', resource: webhook },
    [`PATCH ${one}`]: { ...write, resource: webhook, body: () => ({ name: newName() }) },
    [`DELETE ${one}`]: { ...write, resource: webhook },
    [`POST ${one}/rotate-secret`]: { ...write, resource: webhook },
    [`POST ${one}/ping`]: { ...write, resource: webhook },
    [`GET ${one}/deliveries`]: { need: 'webhooks:read', roles: ADMINS, resource: webhook },
    [`GET ${one}/deliveries/{delivery_id}`]: { need: 'webhooks:read', roles: ADMINS, resource: delivery },
    [`POST ${one}/deliveries/{delivery_id}/redeliver`]: { ...write, resource: delivery },
    [`POST ${one}/replay`]: {
      ...write,
      resource: webhook,
      body: () => ({ since: new Date(Date.now() - 60_000).toISOString() }),
    },
  };
}

function told({ db }: TestApi): Record<string, EndpointCase> {
  const notification = async ({ user_id }: Person) => ({ id: await makeNotification(db, user_id) });
  const events = { need: 'instances:read', or: 'org:read' } as const;
  const read = { need: 'notifications:read', personal: true } as const;
  const write = { need: 'notifications:write', personal: true } as const;
  return {
    'GET /v1/notifications': read,
    'GET /v1/notifications/unread-count': read,
    'GET /v1/notifications/stream': read,
    'GET /v1/notifications/preferences': read,
    'PUT /v1/notifications/preferences': { ...write, body: () => ({ mail: {} }) },
    'POST /v1/notifications/read-all': write,
    'PATCH /v1/notifications/{id}': {
      ...write,
      resource: notification,
      of_service_account: async ({ org_id }) => {
        const account = await makeServiceAccount(db, org_id, '*');
        return { id: await makeNotification(db, account), account };
      },
      body: () => ({ read: true }),
    },
    'GET /v1/usage': { need: 'instances:read' },
    'GET /v1/events': events,
    'GET /v1/events/stream': events,
  };
}
