/** Counts the credentials of an account other than its password. */
import { sql } from 'kysely';
import { present } from '../../shared/assert.ts';
import type { UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

export interface WaysIn {
  readonly api_keys: number;
  readonly ssh_keys: number;
  /** Confirmed second factors; a passkey logs in without a password. */
  readonly factors: number;
}

export async function countWaysIn(tx: Tx, user_id: UserId): Promise<WaysIn> {
  const { rows } = await sql<WaysIn>`
    select (select count(*)::int from api_keys
            where user_id = ${user_id} and (expires_at is null or expires_at > now())) as api_keys,
           (select count(*)::int from ssh_keys where user_id = ${user_id}) as ssh_keys,
           (select count(*)::int from mfa_factors
            where user_id = ${user_id} and confirmed_at is not null) as factors`.execute(tx);
  return present(rows[0], 'a count');
}
