/** Calls /v1/api-keys, for several test files. */
import assert from 'node:assert/strict';
import type { ApiKeyId } from '../../src/shared/ids.ts';
import type { AccessApi } from './access-api.ts';
import type { Answer } from './client.ts';
import type { Person } from './people.ts';

/** An API key as the API shows it. */
export interface Key {
  readonly id: ApiKeyId;
  readonly name: string;
  readonly scope: string;
  readonly service_account_id: string | null;
  readonly allowed_cidrs: string[];
  readonly prefix: string;
  readonly last4: string;
  readonly created_at: string;
  readonly last_used_at: string | null;
  readonly expires_at: string | null;
  readonly previous_expires_at: string | null;
  readonly created_by_key: string | null;
}

/** With the secret, as creation and rotation return it. */
export interface MadeKey extends Key {
  readonly key: string;
}

export function apiKeyCalls(api: AccessApi) {
  return {
    async make(who: Person | string, body: Record<string, unknown> = {}): Promise<MadeKey> {
      const json = { name: 'ci', scope: 'vm:read', ...body };
      const answer = await api.as(who).post<MadeKey>('/v1/api-keys', json);
      assert.equal(answer.status, 201, answer.text);
      return answer.body;
    },

    /** With a fresh sudo grant. */
    async rotate(
      who: Person,
      id: string,
      json: unknown = {},
      more: Record<string, string> = {},
    ): Promise<Answer<MadeKey>> {
      const headers = { ...(await api.sudo(who)), ...more };
      return api.as(who).call<MadeKey>('POST', `/v1/api-keys/${id}/rotate`, { json, headers });
    },

    /** Whether a key authenticates. */
    async works(key: string): Promise<boolean> {
      const answer = await api.as(key).get('/v1/api-keys');
      if (answer.status === 401) return false;
      assert.ok([200, 403].includes(answer.status), answer.text);
      return true;
    },
  };
}
