import { actorOf, type Principal } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import { newId } from '../lib/ids.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import type { Sealer } from '../lib/seal.ts';
import { presentAdmin } from '../orgs/owners.ts';
import { checkQuota } from '../orgs/quotas.ts';
import { lockOrganisation } from '../orgs/store.ts';
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
