/** Single-use tokens that prove an address: for a password reset and for a change of address. */
import { sql } from 'kysely';
import type { UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Database } from '../db/tables.ts';
import { hashToken, MAIL_PREFIX, newToken, tokenPrefix } from './tokens.ts';

export const MAIL_TOKEN_LIFETIME_S = 3_600;
type Kind = Database['mail_tokens']['kind'];

/** Issues a token and voids earlier ones of the same kind. */
export async function issueMailToken(
  tx: Tx,
  kind: Kind,
  user_id: UserId,
  email: string | null,
): Promise<string> {
  const token = newToken(MAIL_PREFIX);
  await voidMailTokens(tx, kind, user_id);
  await tx
    .insertInto('mail_tokens')
    .values({
      token_hash: hashToken(token),
      kind,
      user_id,
      email,
      expires_at: sql<Date>`now() + make_interval(secs => ${MAIL_TOKEN_LIFETIME_S})`,
    })
    .execute();
  return token;
}

export async function voidMailTokens(tx: Tx, kind: Kind, user_id: UserId): Promise<void> {
  await tx.deleteFrom('mail_tokens').where('user_id', '=', user_id).where('kind', '=', kind).execute();
}

/** Consumes a token; undefined if it does not exist or has expired. */
export async function consumeMailToken(tx: Tx, kind: Kind, token: string) {
  if (tokenPrefix(token) !== MAIL_PREFIX) return undefined;
  return tx
    .deleteFrom('mail_tokens')
    .where('token_hash', '=', hashToken(token))
    .where('kind', '=', kind)
    .where('expires_at', '>', sql<Date>`now()`)
    .returning(['user_id', 'email'])
    .executeTakeFirst();
}
