/** Rows of Idempotency-Keys and the answers that they repeat. */
import { sql } from 'kysely';
import type { OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

const KEPT_HOURS = 24;

/** A key is unique per principal and route. */
export interface KeyName {
  readonly org_id: OrgId;
  readonly principal: string;
  readonly route: string;
  readonly key: string;
}

/** Takes a transaction-scoped advisory lock named by 64 bits of `digest`; false, at once, if another transaction has it. */
export async function tryLockKey(tx: Tx, digest: Buffer): Promise<boolean> {
  const { rows } = await sql<{ locked: boolean }>`
    select pg_try_advisory_xact_lock(${digest.readInt32BE(0)}, ${digest.readInt32BE(4)}) as locked`.execute(
    tx,
  );
  return rows[0]?.locked === true;
}

export async function findResponse(tx: Tx, { org_id, principal, route, key }: KeyName) {
  return tx
    .selectFrom('idempotency_keys')
    .select(['fingerprint', 'status', 'response'])
    .where('org_id', '=', org_id)
    .where('principal', '=', principal)
    .where('route', '=', route)
    .where('key', '=', key)
    .where('expires_at', '>', sql<Date>`now()`)
    .executeTakeFirst();
}

/** Replaces an expired one. */
export async function upsertResponse(
  tx: Tx,
  { org_id, principal, route, key }: KeyName,
  stored: { readonly fingerprint: Buffer; readonly status: number; readonly response: Buffer },
): Promise<void> {
  const row = { ...stored, expires_at: sql<Date>`now() + make_interval(hours => ${KEPT_HOURS})` };
  await tx
    .insertInto('idempotency_keys')
    .values({ org_id, principal, route, key, ...row })
    .onConflict((conflict) => conflict.columns(['org_id', 'principal', 'route', 'key']).doUpdateSet(row))
    .execute();
}

export async function deleteExpiredResponses(tx: Tx): Promise<void> {
  await tx.deleteFrom('idempotency_keys').where('expires_at', '<', sql<Date>`now()`).execute();
}
