import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import type { UserId } from '../lib/ids.ts';

/** In the transaction that changes it. @param how by the person, by a reset mail, or by the operator on the server */
export async function tellOfPassword(
  tx: Tx,
  user_id: UserId,
  how: 'changed' | 'reset' | 'server',
  actor: string,
): Promise<void> {
  await appendPrivate(tx, { type: 'password.changed', org_id: null, user_id, data: { how }, actor });
}
