/** ETag and If-Match: a change applies to the seen state, or not at all. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { present } from '../../src/shared/assert.ts';
import { apiForFile, newName } from '../support/api.ts';
import type { Method } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { makeGenerations } from '../support/generations.ts';
import { makeKey, makeSshKey, makeSudo, type Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { makeWebhook } from '../support/webhooks.ts';

const api = await apiForFile();
const owner = await api.person();
const ssh_key = await makeSshKey(api.db, owner.user_id);

interface Change {
  readonly method: Method;
  readonly path: string;
  readonly json?: () => Promise<unknown>;
  readonly sudo?: boolean;
  /** Deletes the resource, so there is nothing to read afterwards. */
  readonly last?: boolean;
}
interface Resource {
  readonly make: (who: Person) => Promise<string>;
  readonly changes: readonly Change[];
}
/** Of any two in turn neither is what was muted before them. */
const KINDS = ['vm.failed', 'vm.recovered', 'disk.flush_failed'] as const;
let muted = 0;
const RESOURCES: Record<string, Resource> = {
  'an instance': {
    make: async (who) => `/v1/instances/${(await api.instance(who)).id}`,
    changes: [
      { method: 'PATCH', path: '', json: async () => ({ name: newName() }) },
      { method: 'DELETE', path: '', last: true },
    ],
  },
  'an instance with a generation': {
    make: async (who) => {
      const { id } = await api.instance(who);
      await makeGenerations(api.db, id, 1);
      return `/v1/instances/${id}`;
    },
    changes: [{ method: 'POST', path: '/restore', json: async () => ({ generation: 1 }) }],
  },
  "an instance's key set": {
    make: async (who) => `/v1/instances/${(await api.instance(who)).id}/ssh-keys`,
    changes: [
      {
        method: 'PUT',
        path: '',
        json: async () => ({ ssh_key_ids: [ssh_key.id] }),
      },
    ],
  },
  'a VM that is stopped': {
    make: async (who) => `/v1/instances/${(await api.instance(who)).id}/vm`,
    changes: [{ method: 'POST', path: '' }],
  },
  'a VM that runs': {
    make: async (who) => `/v1/instances/${(await instanceIn(api, who, 'running')).id}/vm`,
    changes: [
      { method: 'DELETE', path: '' },
      { method: 'POST', path: '/restart' },
      { method: 'POST', path: '/suspend' },
    ],
  },
  'an account': {
    make: async () => '/v1/me',
    changes: [{ method: 'PATCH', path: '', json: async () => ({ name: newName() }) }],
  },
  'notification preferences': {
    make: async () => '/v1/notifications/preferences',
    changes: [
      {
        method: 'PUT',
        path: '',
        json: async () => {
          muted = (muted + 1) % KINDS.length;
          return { mail: { [present(KINDS[muted], 'a kind')]: false } };
        },
      },
    ],
  },
  'an organisation': {
    make: async (who) => `/v1/orgs/${who.org_id}`,
    changes: [
      { method: 'PATCH', path: '', json: async () => ({ name: newName() }) },
      {
        method: 'PUT',
        path: '/billing-email',
        json: async () => ({ email: `${newName()}@example.org` }),
        sudo: true,
      },
    ],
  },
  'a webhook': {
    make: async (who) => `/v1/webhooks/${(await makeWebhook(api, who, 'http://127.0.0.1:9/')).id}`,
    changes: [
      { method: 'PATCH', path: '', json: async () => ({ name: newName() }) },
      { method: 'POST', path: '/rotate-secret' },
      { method: 'DELETE', path: '', last: true },
    ],
  },
  'an API key': {
    make: async (who) => `/v1/api-keys/${(await makeKey(api.db, who, '*')).id}`,
    changes: [
      { method: 'POST', path: '/rotate', sudo: true },
      { method: 'DELETE', path: '', last: true },
    ],
  },
};

test('a creation returns the ETag, its replay does not', async () => {
  const made: Record<string, object> = {
    '/v1/instances': { name: newName() },
    '/v1/api-keys': { name: 'key', scope: 'vm:read' },
    '/v1/webhooks': { name: 'hook', url: 'http://127.0.0.1:9/', events: ['*'] },
    '/v1/service-accounts': { name: 'robot', scope: 'vm:read' },
    '/v1/orgs': { name: 'another' },
  };
  for (const [path, json] of Object.entries(made)) {
    const options = { json, headers: { 'idempotency-key': newName() } };
    const answer = await api.as(owner).call<{ id: string }>('POST', path, options);
    assert.equal(answer.status, 201, answer.text);
    const read = await api.as(owner).get(`${path}/${answer.body.id}`);
    assert.equal(answer.headers['etag'], present(read.headers['etag'], path));
    assert.equal((await api.as(owner).call('POST', path, options)).headers['etag'], undefined);
  }
});

for (const [what, { make, changes }] of Object.entries(RESOURCES)) {
  describe(what, () => {
    const read = async (path: string) => {
      const answer = await api.as(owner).get<unknown>(path);
      assert.equal(answer.status, 200, answer.text);
      const etag = String(answer.headers['etag']);
      assert.match(etag, /^"[\w-]{22}"$/, 'a strong one');
      return { etag, text: answer.text };
    };
    for (const { method, path, json, sudo, last } of changes) {
      const call = async (to: string, if_match: string | undefined) =>
        api.as(owner).call<unknown>(method, `${to}${path}`, {
          ...(json === undefined ? {} : { json: await json() }),
          headers: {
            ...(if_match === undefined ? {} : { 'if-match': if_match }),
            ...(sudo === true ? await makeSudo(api.db, owner) : {}),
          },
        });
      const assertDone = (answer: { status: number; text: string }) =>
        assert.ok(answer.status < 300, `${answer.status} ${answer.text}`);

      test(`${method} ${path}: 412 with another ETag, a weak one or an empty list, without a change`, async () => {
        const at = await make(owner);
        const { etag, text } = await read(at);
        const other = `"${'x'.repeat(22)}"`;
        for (const wrong of [other, `W/${etag}`, `${other}, "y"`, etag.slice(1, -1), '""', ',']) {
          assertError(await call(at, wrong), 'PRECONDITION_FAILED');
        }
        assert.deepEqual(await read(at), { etag, text });
      });

      test(`${method} ${path}: succeeds with the ETag, with one of several, with *, and without`, async () => {
        for (const pick of [
          (etag: string) => etag,
          (etag: string) => `"other", ${etag}`,
          () => '*',
          () => undefined,
        ]) {
          const at = await make(owner);
          const { etag } = await read(at);
          assertDone(await call(at, pick(etag)));
          if (last !== true) assert.notEqual((await read(at)).etag, etag, 'a change changes it');
        }
      });

      if (last !== true) {
        test(`${method} ${path}: of two changes with the same ETag, one succeeds`, async () => {
          const at = await make(owner);
          const { etag } = await read(at);
          const answers = await Promise.all([call(at, etag), call(at, etag)]);
          const [made, refused] = answers.toSorted((a, b) => a.status - b.status);
          assertDone(present(made, 'an answer'));
          assert.equal(refused?.status, 412);
        });
      }
    }
  });
}
