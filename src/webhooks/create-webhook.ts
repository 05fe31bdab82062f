import { actorOf, type Principal } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { newId } from '../lib/ids.ts';
import type { Sealer } from '../lib/seal.ts';
import { presentAdmin } from '../orgs/owners.ts';
import { lockOrganisation } from '../orgs/store.ts';
import { MAX_WEBHOOKS, type Wanted } from './model.ts';
import { newSecret } from './sign.ts';
import { countWebhooks, insertWebhook, type WebhookRow } from './store.ts';

export interface WebhookRequest {
  readonly name: string;
  /** Judged already. */
  readonly url: string;
  readonly events: readonly Wanted[];
}

/**
 * The secret is in the answer and, sealed, in the row. Nothing is sent. The caller may have been removed while a name
 * server was asked about the URL. @throws AppError QUOTA_EXCEEDED, FORBIDDEN
 */
export async function createWebhook(
  tx: Tx,
  principal: Principal,
  secrets: Sealer,
  { name, url, events }: WebhookRequest,
): Promise<WebhookRow & { secret: string }> {
  const { org_id } = principal;
  await lockOrganisation(tx, org_id);
  await presentAdmin(tx, principal);
  if ((await countWebhooks(tx, org_id)) >= MAX_WEBHOOKS) {
    throw new AppError('QUOTA_EXCEEDED', {
      message: `An organisation has at most ${MAX_WEBHOOKS} webhooks. Delete one first.`,
    });
  }
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
