/** Stores the current refresh token of each session, and the recently replaced ones. */
import { sql } from 'kysely';
import type { SessionId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { RefreshToken } from './refresh-tokens.ts';

/** How long a replaced token is still accepted. */
export const REPLACED_GRACE_S = 10;

const graceBegan = () => sql<Date>`clock_timestamp() - make_interval(secs => ${REPLACED_GRACE_S})`;

/** The live session of a current or replaced token, locked until the transaction ends. */
export async function lockSessionOfFamily(tx: Tx, { family_hash }: RefreshToken) {
  return tx
    .selectFrom('sessions')
    .select(['id', 'user_id', 'refresh_hash', 'ends_at'])
    .where('refresh_family', '=', family_hash)
    .where('ends_at', '>', sql<Date>`now()`)
    .forNoKeyUpdate()
    .executeTakeFirst();
}

export async function replaceRefreshToken(
  tx: Tx,
  session_id: SessionId,
  { token_hash }: RefreshToken,
  next: RefreshToken,
): Promise<void> {
  await deleteLongReplaced(tx, session_id);
  await tx.insertInto('replaced_refresh_tokens').values({ token_hash, session_id }).execute();
  const change = { refresh_hash: next.token_hash };
  await tx.updateTable('sessions').set(change).where('id', '=', session_id).execute();
}

export async function wasReplacedJustNow(tx: Tx, { token_hash }: RefreshToken): Promise<boolean> {
  const row = await tx
    .selectFrom('replaced_refresh_tokens')
    .select('replaced_at')
    .where('token_hash', '=', token_hash)
    .where('replaced_at', '>', graceBegan())
    .executeTakeFirst();
  return row !== undefined;
}

/** Of one session, or of all. */
export async function deleteLongReplaced(tx: Tx, session_id: SessionId | null = null): Promise<void> {
  await tx
    .deleteFrom('replaced_refresh_tokens')
    .where('replaced_at', '<=', graceBegan())
    .$if(session_id !== null, (query) => query.where('session_id', '=', session_id as SessionId))
    .execute();
}
