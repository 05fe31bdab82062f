/** Gives an API key a new secret. The old one is valid for a grace period. */
import { AppError } from '../../shared/errors.ts';
import type { ApiKeyId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { newPlainKey } from './create-api-key.ts';
import { apiKeyView, refuseServiceAccount, viewerOf } from './model.ts';
import { type ApiKeyRow, lockApiKey, replaceSecret } from './store.ts';

export const MAX_GRACE_S = 7 * 86_400;

/**
 * Gives a key a new secret under the same id. The previous secret works for `grace_seconds` more; a second rotation ends
 * it at once, because a key has at most two. `check` throws if the key has changed since the caller read it. @throws AppError NOT_FOUND, CONFLICT
 */
export async function rotateApiKey(
  tx: Tx,
  principal: Principal,
  id: ApiKeyId,
  grace_seconds: number,
  check: (before: ApiKeyRow) => void = () => undefined,
): Promise<ApiKeyRow & { key: string }> {
  refuseServiceAccount(principal);
  const before = await lockApiKey(tx, viewerOf(principal), id);
  if (!before) throw new AppError('NOT_FOUND');
  check(before);
  if (before.expired) {
    throw new AppError('CONFLICT', { message: 'The key has expired. Make a new one (POST /v1/api-keys).' });
  }
  const { key, kept } = newPlainKey();
  const row = await replaceSecret(tx, id, kept, grace_seconds);
  await append(tx, {
    org_id: principal.org_id,
    type: 'api_key.rotated',
    data: { api_key: apiKeyView(row) },
    actor: actorOf(principal),
  });
  return { ...row, key };
}
