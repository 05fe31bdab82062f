/** Answers kept by Idempotency-Key; what they mean is `http/idempotency.ts`'s. */
import { sql } from 'kysely';
import type { OrgId } from '../lib/ids.ts';
import type { Tx } from './pool.ts';

const KEPT_HOURS = 24;

/** Whose key it is, and of which route. */
export interface KeyName {
  readonly org_id: OrgId;
  readonly principal: string;
  readonly route: string;
  readonly key: string;
}

/** An advisory lock of the transaction, named by 64 bits; false, at once, when another transaction has it. */
export async function tryLockKey(tx: Tx, digest: Buffer): Promise<boolean> {
  const { rows } = await sql<{ locked: boolean }>`
    select pg_try_advisory_xact_lock(${digest.readInt32BE(0)}, ${digest.readInt32BE(4)}) as locked`.execute(
    tx,
  );
  return rows[0]?.locked === true;
}

export async function findAnswer(tx: Tx, { org_id, principal, route, key }: KeyName) {
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

/** In place of one that is too old. */
export async function upsertAnswer(
  tx: Tx,
  { org_id, principal, route, key }: KeyName,
  answer: { readonly fingerprint: Buffer; readonly status: number; readonly response: Buffer },
): Promise<void> {
  const kept = { ...answer, expires_at: sql<Date>`now() + make_interval(hours => ${KEPT_HOURS})` };
  await tx
    .insertInto('idempotency_keys')
    .values({ org_id, principal, route, key, ...kept })
    .onConflict((conflict) => conflict.columns(['org_id', 'principal', 'route', 'key']).doUpdateSet(kept))
    .execute();
}

/** For the sweep. */
export async function deleteOldAnswers(tx: Tx): Promise<void> {
  await tx.deleteFrom('idempotency_keys').where('expires_at', '<', sql<Date>`now()`).execute();
}
