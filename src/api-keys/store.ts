import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { ApiKeyId, OrgId, UserId } from '../lib/ids.ts';

const SHOWN = ['id', 'name', 'scope', 'prefix', 'last4', 'created_at', 'last_used_at', 'expires_at'] as const;

export interface NewApiKey {
  readonly id: ApiKeyId;
  readonly org_id: OrgId;
  readonly user_id: UserId;
  readonly name: string;
  readonly scope: string;
  readonly token_hash: Buffer;
  readonly prefix: string;
  readonly last4: string;
  readonly expires_at: Date | null;
}

export async function insertApiKey(tx: Tx, key: NewApiKey) {
  return tx.insertInto('api_keys').values(key).returning(SHOWN).executeTakeFirstOrThrow();
}

/** A key's maker and scope, with the role that the maker has now: a key dies with the membership. */
export async function findApiKeyPrincipal(tx: Tx, token_hash: Buffer) {
  return tx
    .selectFrom('api_keys as k')
    .innerJoin('memberships as m', (join) =>
      join.onRef('m.user_id', '=', 'k.user_id').onRef('m.org_id', '=', 'k.org_id'),
    )
    .select(['k.id', 'k.user_id', 'k.org_id', 'k.scope', 'k.last_used_at', 'm.role'])
    .where('k.token_hash', '=', token_hash)
    .where((eb) => eb.or([eb('k.expires_at', 'is', null), eb('k.expires_at', '>', sql<Date>`now()`)]))
    .executeTakeFirst();
}

/** Notes use, at most once a minute. */
export async function touchApiKey(tx: Tx, id: ApiKeyId): Promise<void> {
  await tx
    .updateTable('api_keys')
    .set({ last_used_at: sql`now()` })
    .where('id', '=', id)
    .where((eb) =>
      eb.or([
        eb('last_used_at', 'is', null),
        eb('last_used_at', '<', sql<Date>`now() - interval '1 minute'`),
      ]),
    )
    .execute();
}

export async function listApiKeys(
  tx: Tx,
  owner: { org_id: OrgId; user_id: UserId },
  before: string | null,
  limit: number,
) {
  return tx
    .selectFrom('api_keys')
    .select(SHOWN)
    .where('org_id', '=', owner.org_id)
    .where('user_id', '=', owner.user_id)
    .$if(before !== null, (query) => query.where('id', '<', before as ApiKeyId))
    .orderBy('id', 'desc')
    .limit(limit)
    .execute();
}

export async function findApiKey(tx: Tx, owner: { org_id: OrgId; user_id: UserId }, id: ApiKeyId) {
  return tx
    .selectFrom('api_keys')
    .select(SHOWN)
    .where('org_id', '=', owner.org_id)
    .where('user_id', '=', owner.user_id)
    .where('id', '=', id)
    .executeTakeFirst();
}

export async function deleteApiKey(
  tx: Tx,
  owner: { org_id: OrgId; user_id: UserId },
  id: ApiKeyId,
): Promise<boolean> {
  const gone = await tx
    .deleteFrom('api_keys')
    .where('org_id', '=', owner.org_id)
    .where('user_id', '=', owner.user_id)
    .where('id', '=', id)
    .executeTakeFirst();
  return gone.numDeletedRows > 0n;
}
