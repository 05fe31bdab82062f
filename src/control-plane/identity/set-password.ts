import type { SessionId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { voidMailTokens } from './mail-token-store.ts';
import { deleteOtherSessions, deleteSudoGrants, updateUser } from './store.ts';
import { countWaysIn, type WaysIn } from './ways-in-store.ts';

export interface NewPassword {
  readonly password_hash: string;
  /** By the person, by a reset mail (`first_reset`: the reset also confirms the address), or by the operator on the server. */
  readonly how: 'changed' | 'reset' | 'first_reset' | 'server';
  readonly actor: string;
  /** The session that changes it. */
  readonly keep?: SessionId | null;
}

/**
 * Sets a password. Ends every session but the one to keep, every sudo grant, and every mailed token for a password reset
 * or a change of address. Keys and factors remain; the notification to the account says how many.
 */
export async function setPassword(
  tx: Tx,
  user_id: UserId,
  { password_hash, how, actor, keep = null }: NewPassword,
): Promise<WaysIn> {
  await updateUser(tx, user_id, { password_hash });
  await deleteOtherSessions(tx, user_id, keep);
  await deleteSudoGrants(tx, user_id);
  await voidMailTokens(tx, 'password_reset', user_id);
  await voidMailTokens(tx, 'confirm_email', user_id);
  const remaining = await countWaysIn(tx, user_id);
  const data = { how, remaining };
  await appendPrivate(tx, { type: 'password.changed', org_id: null, user_id, data, actor });
  return remaining;
}
