/** Revokes an API key, with all keys that were made with it. */
import { AppError } from '../../shared/errors.ts';
import type { ApiKeyId, OrgId, ServiceAccountId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { actorOf, isAdmin, type Principal } from '../identity/principal.ts';
import { apiKeyView, refuseServiceAccount, viewerOf } from './model.ts';
import {
  type ApiKeyRow,
  deleteApiKey,
  deleteApiKeys,
  deleteKeysOf,
  lockApiKey,
  lockMadeBy,
} from './store.ts';

/** Throws if the key has changed since the caller read it. */
type Check = (before: ApiKeyRow) => void;

/** Revokes a key at once, with its previous secret. Keys made with it remain. @throws AppError NOT_FOUND */
export async function revokeApiKey(
  tx: Tx,
  principal: Principal,
  id: ApiKeyId,
  check: Check = () => undefined,
): Promise<ApiKeyRow> {
  const gone = await lockedApiKey(tx, principal, id, check);
  await deleteApiKey(tx, id);
  await appendRevoked(tx, principal.org_id, actorOf(principal), gone);
  return gone;
}

/**
 * The key and all keys made with it, directly or through others. They are locked, so they make no further keys until the
 * transaction ends. Call {@link revokeApiKeys} after revoking what else they made. @throws AppError NOT_FOUND, FORBIDDEN
 */
export async function holdLineage(
  tx: Tx,
  principal: Principal,
  id: ApiKeyId,
  check: Check = () => undefined,
): Promise<ApiKeyRow[]> {
  const lineage = [await lockedApiKey(tx, principal, id, check)];
  for (let next: ApiKeyRow[] = lineage; next.length > 0; ) {
    next = await lockMadeBy(
      tx,
      next.map((key) => key.id),
    );
    lineage.push(...next);
  }
  if (!isAdmin(principal) && lineage.some((key) => key.service_account_id !== null)) {
    throw new AppError('FORBIDDEN', {
      message:
        'Some keys that were made with it belong to service accounts. Revoke it alone, and ask an owner or admin to revoke those.',
    });
  }
  return lineage;
}

/** Revokes a whole lineage, see {@link holdLineage}. */
export async function revokeApiKeys(
  tx: Tx,
  principal: Principal,
  lineage: readonly ApiKeyRow[],
): Promise<void> {
  await deleteApiKeys(
    tx,
    lineage.map((key) => key.id),
  );
  for (const gone of lineage) await appendRevoked(tx, principal.org_id, actorOf(principal), gone);
}

async function lockedApiKey(tx: Tx, principal: Principal, id: ApiKeyId, check: Check): Promise<ApiKeyRow> {
  refuseServiceAccount(principal);
  const found = await lockApiKey(tx, viewerOf(principal), id);
  if (!found) throw new AppError('NOT_FOUND');
  check(found);
  return found;
}

/** Revokes every key of a leaving member or a deleted service account. */
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
