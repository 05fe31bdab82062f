import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import type { WebhookId } from '../lib/ids.ts';
import { tellOfChange } from './changed.ts';
import type { DisabledReason } from './model.ts';
import { disableWebhook } from './store.ts';
import { webhookView } from './view.ts';

/**
 * Nothing more is sent, and nothing kept for it: a replay sends later what it missed. Once: again does nothing. With
 * `addresses`, only while its URL is one of them.
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
  await tellOfChange(tx, id);
  await append(tx, {
    org_id: row.org_id,
    type: 'webhook.disabled',
    data: { webhook: webhookView(row) },
    actor,
  });
}
