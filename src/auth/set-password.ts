import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import type { SessionId, UserId } from '../lib/ids.ts';
import { voidMailTokens } from './mail-token-store.ts';
import { deleteOtherSessions, updateUser } from './store.ts';
import { countWaysIn, type WaysIn } from './ways-in-store.ts';

export interface NewPassword {
  readonly password_hash: string;
  /** By the person, by a reset mail (`first_reset`: which was the first proof of the address), or by the operator on the server. */
  readonly how: 'changed' | 'reset' | 'first_reset' | 'server';
  readonly actor: string;
  /** The session in which it is changed. */
  readonly keep?: SessionId | null;
}

/**
 * Sets a password, and ends what whoever knew the one before may have begun: every session but the one to keep, every
 * sudo grant, and what was mailed to reset the password or to change the address. The account is told, with how many
 * keys and factors remain, which are not ended.
 */
export async function setPassword(
  tx: Tx,
  user_id: UserId,
  { password_hash, how, actor, keep = null }: NewPassword,
): Promise<WaysIn> {
  await updateUser(tx, user_id, { password_hash });
  await deleteOtherSessions(tx, user_id, keep);
  await voidMailTokens(tx, 'password_reset', user_id);
  await voidMailTokens(tx, 'confirm_email', user_id);
  const remaining = await countWaysIn(tx, user_id);
  const data = { how, remaining };
  await appendPrivate(tx, { type: 'password.changed', org_id: null, user_id, data, actor });
  return remaining;
}
