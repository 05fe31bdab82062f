/**
 * Every endpoint of the API document × {no credential, wrong scope, other organisation, service account}. The table in
 * `support/endpoint-cases.ts` lists the needs of each endpoint; an endpoint without a case fails, and so does a case
 * without an endpoint.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { ALL_SCOPES, ROLE_SCOPES } from '../../src/control-plane/identity/permissions.ts';
import { newId } from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';
import { apiForFile } from '../support/api.ts';
import { type EndpointCase, endpointCases, type PathIds } from '../support/endpoint-cases.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { documentOf, type Endpoint, endpointsOf } from '../support/openapi.ts';
import { makeKey, makeServiceKey, makeSudo } from '../support/people.ts';

const api = await apiForFile();
const owner = await api.person();
const stranger = await api.person();
// The cases of the operator's routes are those of this organisation.
await api.db.updateTable('organisations').set({ operator: true }).where('id', '=', owner.org_id).execute();
const CASES = endpointCases(api);

/** Endpoints without a credential: those that give one. */
const PUBLIC: readonly string[] = [
  'POST /v1/auth/register',
  'POST /v1/auth/login',
  'POST /v1/auth/refresh',
  'POST /v1/auth/password-reset',
  'POST /v1/auth/password-reset/confirm',
  'POST /v1/auth/passkey/options',
  'POST /v1/auth/passkey',
  'GET /v1/auth/oidc/login',
  'GET /v1/auth/oidc/callback',
  'POST /v1/auth/device-logins',
  'POST /v1/auth/device-logins/token',
];

/** Endpoints for service accounts. Never accounts, sessions, sudo, MFA, members, or the creation of keys. */
const FOR_SERVICE_ACCOUNTS: readonly string[] = [
  'GET /v1/api-keys',
  'GET /v1/api-keys/{id}',
  'GET /v1/orgs/{id}',
  'GET /v1/orgs/{id}/quota',
  'GET /v1/orgs/{id}/ssh-keys',
  'GET /v1/audit',
  'GET /v1/images',
  'POST /v1/instances',
  'GET /v1/instances',
  'GET /v1/instances/{id}',
  'GET /v1/usage',
  'PATCH /v1/instances/{id}',
  'DELETE /v1/instances/{id}',
  'GET /v1/instances/{id}/generations',
  'PATCH /v1/instances/{id}/generations/{generation}',
  'POST /v1/instances/{id}/restore',
  'POST /v1/instances/{id}/fork',
  'GET /v1/instances/{id}/vm',
  'POST /v1/instances/{id}/vm',
  'DELETE /v1/instances/{id}/vm',
  'POST /v1/instances/{id}/vm/restart',
  'POST /v1/instances/{id}/vm/suspend',
  'POST /v1/instances/{id}/vm/flush',
  'POST /v1/instances/{id}/vm/exec',
  'POST /v1/instances/{id}/execs',
  'GET /v1/instances/{id}/execs',
  'GET /v1/instances/{id}/execs/{exec_id}',
  'GET /v1/instances/{id}/execs/{exec_id}/output',
  'POST /v1/instances/{id}/execs/{exec_id}/stdin',
  'POST /v1/instances/{id}/execs/{exec_id}/signal',
  'POST /v1/instances/{id}/execs/{exec_id}/resize',
  'POST /v1/instances/{id}/execs/{exec_id}/ticket',
  'DELETE /v1/instances/{id}/execs/{exec_id}',
  'GET /v1/instances/{id}/files',
  'PUT /v1/instances/{id}/files',
  'DELETE /v1/instances/{id}/files',
  'GET /v1/instances/{id}/files/list',
  'POST /v1/instances/{id}/files/move',
  'POST /v1/instances/{id}/files/directory',
  'GET /v1/instances/{id}/vm/egress/denied',
  'GET /v1/instances/{id}/vm/metrics',
  'GET /v1/instances/{id}/metrics',
  'GET /v1/instances/{id}/vm/console',
  'POST /v1/instances/{id}/vm/console/ticket',
  'GET /v1/instances/{id}/ssh',
  'POST /v1/instances/{id}/ports',
  'GET /v1/instances/{id}/secrets',
  'PUT /v1/instances/{id}/secrets/{name}',
  'DELETE /v1/instances/{id}/secrets/{name}',
  'GET /v1/instances/{id}/ports',
  'GET /v1/instances/{id}/ports/{port_id}',
  'PATCH /v1/instances/{id}/ports/{port_id}',
  'DELETE /v1/instances/{id}/ports/{port_id}',
  'POST /v1/instances/{id}/ports/{port_id}/hostnames',
  'DELETE /v1/instances/{id}/ports/{port_id}/hostnames/{hostname}',
  'GET /v1/instances/{id}/ssh-keys',
  'PUT /v1/instances/{id}/ssh-keys',
  'GET /v1/webhooks',
  'GET /v1/webhooks/{id}',
  'GET /v1/notifications',
  'GET /v1/notifications/unread-count',
  'GET /v1/notifications/stream',
  'POST /v1/notifications/read-all',
  'PATCH /v1/notifications/{id}',
  'GET /v1/events',
  'GET /v1/events/stream',
];

const document = documentOf(api.app);
const endpoints = endpointsOf(document);

function call(
  token: string | undefined,
  endpoint: Endpoint,
  ids: PathIds,
  entry: EndpointCase,
  headers = {},
) {
  const named = endpoint.path.replace(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? 'missing');
  const path = entry.query === undefined ? named : `${named}?${entry.query}`;
  const options = entry.body === undefined ? { headers } : { json: entry.body(), headers };
  return (token === undefined ? api.client : api.as(token)).call(endpoint.method, path, options);
}

/** The same ids, of resources that never existed. */
function unknownIds(ids: PathIds): PathIds {
  return Object.fromEntries(
    Object.entries(ids).map(([name, id]) => [name, newId(id.split('_')[0] as 'inst')]),
  );
}

function assertServed(answer: Awaited<ReturnType<typeof call>>, who = ''): void {
  assert.ok(answer.status < 300 || answer.status === 409, `${who} ${answer.status} ${answer.text}`);
}

test('every endpoint has an authorisation case, and every case its endpoint', () => {
  assert.deepEqual(
    endpoints.map((each) => each.name).sort(),
    Object.keys(CASES).sort(),
    'a new endpoint needs a line in support/endpoint-cases.ts',
  );
});

test('only the listed endpoints need no credential', () => {
  const open = Object.entries(CASES).filter(([, { need }]) => need === 'public');
  assert.deepEqual(open.map(([name]) => name).sort(), PUBLIC.toSorted());
  assert.deepEqual(
    endpoints
      .filter(({ operation }) => operation.security?.length === 0)
      .map((each) => each.name)
      .sort(),
    PUBLIC.toSorted(),
    'and the document says the same',
  );
});

test('the list for service accounts names existing endpoints only', () => {
  const names = endpoints.map((each) => each.name);
  assert.deepEqual(
    FOR_SERVICE_ACCOUNTS.filter((name) => !names.includes(name)),
    [],
  );
});

for (const endpoint of endpoints) {
  const entry = CASES[endpoint.name];
  if (!entry || entry.need === 'public') continue;
  const { need, resource, roles } = entry;
  const enough: readonly string[] = [need, entry.or ?? need];
  const idsOf = async (who: typeof owner) => (await resource?.(who)) ?? {};
  const refusal = entry.to_keys ?? 'FORBIDDEN';
  const unauthenticated = endpoint.path.startsWith('/v1/webhooks') ? 'Unauthenticated' : 'UNAUTHENTICATED';
  describe(endpoint.name, () => {
    test('401 without a credential', async () => {
      assertError(await call(undefined, endpoint, await idsOf(owner), entry), unauthenticated);
    });

    test(need === 'session' ? `${refusal} with any key` : `403 with every scope but ${need}`, async () => {
      const scopes = ALL_SCOPES.filter((scope) => !enough.includes(scope)).join(' ');
      const { key } = await makeKey(api.db, owner, need === 'session' ? '*' : scopes);
      assertError(await call(key, endpoint, await idsOf(owner), entry), refusal);
    });

    if (FOR_SERVICE_ACCOUNTS.includes(endpoint.name)) {
      test(`a service account is served with ${need}, and refused without`, async () => {
        const ids = resource === undefined ? {} : await (entry.of_service_account ?? resource)(owner);
        const { key } = await makeServiceKey(api.db, owner.org_id, need, ids['id'], ids['account']);
        assertServed(await call(key, endpoint, ids, entry));
        const without = ALL_SCOPES.filter((scope) => !enough.includes(scope)).join(' ');
        const { key: other } = await makeServiceKey(api.db, owner.org_id, without);
        assertError(await call(other, endpoint, ids, entry), 'FORBIDDEN');
      });
    } else {
      test(`${refusal} for a service account with any scope`, async () => {
        const { key } = await makeServiceKey(api.db, owner.org_id, '*');
        assertError(await call(key, endpoint, await idsOf(owner), entry), refusal);
      });
    }

    if (need !== 'session') {
      test(`served with ${[...new Set(enough)].join(' or ')} alone`, async () => {
        for (const scope of enough) {
          const { key } = await makeKey(api.db, owner, scope);
          assertServed(await call(key, endpoint, await idsOf(owner), entry));
        }
      });
    }

    if (need !== 'session' || roles !== undefined) {
      test('each role is served or gets 403', async () => {
        for (const role of Object.keys(ROLE_SCOPES) as Role[]) {
          const person = await api.person({ org_id: owner.org_id, role });
          // Keys and SSH keys belong to a person, all else to the organisation.
          const ids = await idsOf(entry.personal === true ? person : owner);
          const headers = entry.sudo === true ? await makeSudo(api.db, person) : {};
          const answer = await call(person.session, endpoint, ids, entry, headers);
          const scope_allows = need === 'session' || ROLE_SCOPES[role].includes(need);
          const may = scope_allows && (roles === undefined || roles.includes(role));
          if (may) assertServed(answer, role);
          else assertError(answer, 'FORBIDDEN');
        }
      });
    }

    test('403 in an organisation of somebody else', async () => {
      const headers = { 'berth-org': stranger.org_id };
      assertError(await call(owner.session, endpoint, await idsOf(owner), entry, headers), 'FORBIDDEN');
    });

    if (resource) {
      test("404 for another organisation's resource, as for one that never existed", async () => {
        const theirs = await resource(stranger);
        const headers = entry.sudo === true ? await makeSudo(api.db, owner) : {};
        const none = await call(owner.session, endpoint, unknownIds(theirs), entry, headers);
        assertError(none, 'NOT_FOUND');
        const tokens = [owner.session];
        if (need !== 'session') tokens.push((await makeKey(api.db, owner, '*')).key);
        if (FOR_SERVICE_ACCOUNTS.includes(endpoint.name)) {
          tokens.push((await makeServiceKey(api.db, owner.org_id, '*')).key);
        }
        for (const token of tokens) {
          const answer = await call(token, endpoint, theirs, entry, headers);
          assert.deepEqual(withoutRequestId(answer), withoutRequestId(none));
        }
      });
    }
  });
}
