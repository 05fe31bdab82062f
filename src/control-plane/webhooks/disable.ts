import type { WebhookId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import type { DisabledReason } from './model.ts';
import { disableWebhook } from './store.ts';
import { webhookView } from './view.ts';
import { notifyChanged } from './wake.ts';

/**
 * Disables a webhook: its pending deliveries fail, and it gets no new ones; a replay sends them later. Does nothing if it is
 * already disabled, or if its URL is not one of `addresses`.
 */
export async function disable(
  tx: Tx,
  id: WebhookId,
  reason: DisabledReason,
  actor: string,
  addresses?: readonly string[],
): Promise<void> {
  const row = await disableWebhook(tx, id, reason, addresses);
  if (!row || row.org_id === null) return;
  await notifyChanged(tx, id);
  await append(tx, {
    org_id: row.org_id,
    type: 'webhook.disabled',
    data: { webhook: webhookView(row) },
    actor,
  });
}
