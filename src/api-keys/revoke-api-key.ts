import { actorOf, type Principal } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { AppError } from '../lib/errors.ts';
import type { ApiKeyId, OrgId, ServiceAccountId, UserId } from '../lib/ids.ts';
import { type ApiKeyRow, deleteApiKey, deleteKeysOf } from './store.ts';
import { apiKeyView } from './view.ts';
import { refuseServiceAccount, viewerOf } from './viewer.ts';

/**
 * Ends a key at once, with the one before it. `check` throws where the key is not the one that the caller saw.
 * @throws AppError NOT_FOUND
 */
export async function revokeApiKey(
  tx: Tx,
  principal: Principal,
  id: ApiKeyId,
  check: (before: ApiKeyRow) => void = () => undefined,
): Promise<ApiKeyRow> {
  refuseServiceAccount(principal);
  const gone = await deleteApiKey(tx, viewerOf(principal), id);
  if (!gone) throw new AppError('NOT_FOUND');
  check(gone);
  await appendRevoked(tx, principal.org_id, actorOf(principal), gone);
  return gone;
}

/** Ends every key of a member who goes, or of a service account that ends. */
export async function revokeKeysOf(
  tx: Tx,
  org_id: OrgId,
  holder: { readonly user_id: UserId } | { readonly service_account_id: ServiceAccountId },
  actor: string,
): Promise<void> {
  for (const gone of await deleteKeysOf(tx, org_id, holder)) await appendRevoked(tx, org_id, actor, gone);
}

async function appendRevoked(tx: Tx, org_id: OrgId, actor: string, row: ApiKeyRow): Promise<void> {
  await append(tx, { org_id, type: 'api_key.revoked', data: { api_key: apiKeyView(row) }, actor });
}
