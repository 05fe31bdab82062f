import { newId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { presentAdmin } from '../organisations/owners.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { lockOrganisation } from '../organisations/store.ts';
import type { Wanted } from './model.ts';
import { newSecret } from './sign.ts';
import { insertWebhook, type WebhookRow } from './store.ts';

export interface WebhookRequest {
  readonly name: string;
  /** Has passed `Outbound.checkUrl`. */
  readonly url: string;
  readonly events: readonly Wanted[];
}

/**
 * Sends nothing. The row keeps the secret sealed. @throws AppError QUOTA_EXCEEDED, FORBIDDEN when the caller was removed
 * during the check of the URL
 */
export async function createWebhook(
  tx: Tx,
  quotas: QuotaLimits,
  principal: Principal,
  secrets: Sealer,
  { name, url, events }: WebhookRequest,
): Promise<WebhookRow & { secret: string }> {
  const { org_id } = principal;
  await lockOrganisation(tx, org_id);
  await presentAdmin(tx, principal);
  await checkQuota(tx, quotas, org_id, { webhooks: 1 });
  const id = newId('wh');
  const secret = newSecret();
  const row = await insertWebhook(tx, {
    id,
    org_id,
    name,
    url,
    events: [...events],
    secret: secrets.seal(secret, id),
    created_by: actorOf(principal),
  });
  return { ...row, secret };
}
