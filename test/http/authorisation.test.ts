/**
 * Every endpoint of the API document × {no credential, wrong scope, other organisation}. The table below says what
 * each endpoint needs; an endpoint that is missing there fails, and so does a line whose endpoint is gone.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { ALL_SCOPES, ROLE_SCOPES, type Scope } from '../../src/auth/permissions.ts';
import type { Role } from '../../src/db/tables.ts';
import { newId } from '../../src/lib/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { type Document, type Endpoint, endpointsOf } from '../support/openapi.ts';
import { makeKey, makeSshKey, type Person, randomPublicKey } from '../support/people.ts';

const api = await apiForFile();
const owner = await api.person();
const stranger = await api.person();

/** `session`: a person's own; a key gets 403. `public`: no credential, and that list may only shrink. */
type Need = Scope | 'session' | 'public';
interface Case {
  readonly need: Need;
  /** Makes the resource of `who` that the path names; absent: the path names none. */
  readonly resource?: (who: Person) => Promise<string>;
  readonly body?: () => unknown;
}

const instance = async (who: Person) => (await api.instance(who)).id;
const CASES: Record<string, Case> = {
  'POST /v1/auth/login': { need: 'public' },
  'POST /v1/auth/logout': { need: 'session' },
  'GET /v1/me': { need: 'session' },
  'GET /v1/me/ssh-keys': { need: 'ssh_keys:read' },
  'POST /v1/me/ssh-keys': {
    need: 'ssh_keys:write',
    body: () => ({ name: 'a', public_key: randomPublicKey().line }),
  },
  'DELETE /v1/me/ssh-keys/{id}': {
    need: 'ssh_keys:write',
    resource: async (who) => (await makeSshKey(api.db, who.user_id)).id,
  },
  'POST /v1/api-keys': { need: 'api_keys:write', body: () => ({ name: 'a', scope: 'api_keys:write' }) },
  'GET /v1/api-keys': { need: 'api_keys:read' },
  'GET /v1/api-keys/{id}': {
    need: 'api_keys:read',
    resource: async (who) => (await makeKey(api.db, who, '*')).id,
  },
  'DELETE /v1/api-keys/{id}': {
    need: 'api_keys:write',
    resource: async (who) => (await makeKey(api.db, who, '*')).id,
  },
  'GET /v1/images': { need: 'instances:read' },
  'POST /v1/instances': { need: 'instances:write', body: () => ({ name: newName() }) },
  'GET /v1/instances': { need: 'instances:read' },
  'GET /v1/instances/{id}': { need: 'instances:read', resource: instance },
  'PATCH /v1/instances/{id}': { need: 'instances:write', resource: instance },
  'DELETE /v1/instances/{id}': { need: 'instances:write', resource: instance },
  'GET /v1/instances/{id}/vm': { need: 'vm:read', resource: instance },
  'POST /v1/instances/{id}/vm': { need: 'vm:write', resource: instance },
  'DELETE /v1/instances/{id}/vm': { need: 'vm:write', resource: instance },
  'POST /v1/instances/{id}/vm/restart': { need: 'vm:write', resource: instance },
  'POST /v1/instances/{id}/vm/flush': { need: 'vm:write', resource: instance },
  'GET /v1/instances/{id}/ssh': { need: 'vm:read', resource: instance },
  'GET /v1/instances/{id}/ssh-keys': { need: 'ssh_keys:read', resource: instance },
  'PUT /v1/instances/{id}/ssh-keys': {
    need: 'ssh_keys:write',
    resource: instance,
    body: () => ({ mode: 'account' }),
  },
};

const document = api.app.swagger() as unknown as Document;
const endpoints = endpointsOf(document);

function call(token: string | undefined, endpoint: Endpoint, id: string, entry: Case, headers = {}) {
  const path = endpoint.path.replace('{id}', id);
  const options = entry.body === undefined ? { headers } : { json: entry.body(), headers };
  return (token === undefined ? api.client : api.as(token)).call(endpoint.method, path, options);
}

test('every endpoint has an authorisation case, and every case its endpoint', () => {
  assert.deepEqual(
    endpoints.map((each) => each.name).sort(),
    Object.keys(CASES).sort(),
    'a new endpoint needs a line in CASES of this file',
  );
});

test('what needs no credential is login alone', () => {
  const open = Object.entries(CASES).filter(([, { need }]) => need === 'public');
  assert.deepEqual(
    open.map(([name]) => name),
    ['POST /v1/auth/login'],
  );
  assert.deepEqual(
    endpoints.filter(({ operation }) => operation.security?.length === 0).map((each) => each.name),
    ['POST /v1/auth/login'],
    'and the document says the same',
  );
});

for (const endpoint of endpoints) {
  const entry = CASES[endpoint.name];
  if (!entry || entry.need === 'public') continue;
  const { need, resource } = entry;
  describe(endpoint.name, () => {
    test('401 without a credential', async () => {
      const id = (await resource?.(owner)) ?? '';
      assertError(await call(undefined, endpoint, id, entry), 'UNAUTHENTICATED');
    });

    test(need === 'session' ? '403 with any key' : `403 with every scope but ${need}`, async () => {
      const id = (await resource?.(owner)) ?? '';
      const scopes = ALL_SCOPES.filter((scope) => scope !== need).join(' ');
      const { key } = await makeKey(api.db, owner, need === 'session' ? '*' : scopes);
      assertError(await call(key, endpoint, id, entry), 'FORBIDDEN');
    });

    if (need !== 'session') {
      test(`served with ${need} alone`, async () => {
        const id = (await resource?.(owner)) ?? '';
        const { key } = await makeKey(api.db, owner, need);
        const answer = await call(key, endpoint, id, entry);
        assert.ok(answer.status < 300 || answer.status === 409, `${answer.status} ${answer.text}`);
      });

      test('by role: served where the role has the scope, else 403', async () => {
        for (const role of Object.keys(ROLE_SCOPES) as Role[]) {
          const person = await api.person({ org_id: owner.org_id, role });
          // Keys and SSH keys are one's own; instances are the organisation's.
          const own = endpoint.path.startsWith('/v1/instances') ? owner : person;
          const id = (await resource?.(own)) ?? '';
          const answer = await call(person.session, endpoint, id, entry);
          if (!ROLE_SCOPES[role].includes(need)) assertError(answer, 'FORBIDDEN');
          else
            assert.ok(
              answer.status < 300 || answer.status === 409,
              `${role}: ${answer.status} ${answer.text}`,
            );
        }
      });
    }

    test('403 with the organisation of somebody else', async () => {
      const id = (await resource?.(owner)) ?? '';
      const answer = await call(owner.session, endpoint, id, entry, { 'berth-org': stranger.org_id });
      assertError(answer, 'FORBIDDEN');
    });

    if (resource) {
      test("404 on another organisation's resource, as on one that never was", async () => {
        const theirs = await resource(stranger);
        const prefix = theirs.split('_')[0] as 'inst';
        const { key } = await makeKey(api.db, owner, '*');
        const none = await call(owner.session, endpoint, newId(prefix), entry);
        assertError(none, 'NOT_FOUND');
        for (const token of [owner.session, key]) {
          const answer = await call(token, endpoint, theirs, entry);
          assert.deepEqual(withoutRequestId(answer), withoutRequestId(none));
        }
      });
    }
  });
}
