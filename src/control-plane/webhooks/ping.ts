import type { EventId, WebhookId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { enabledWebhook } from './change-webhook.ts';
import { webhookView } from './view.ts';

/** Sends a `webhook.ping` to this webhook alone, whatever its `events`. @throws AppError NOT_FOUND, CONFLICT */
export async function pingWebhook(tx: Tx, principal: Principal, id: WebhookId): Promise<EventId> {
  const row = await enabledWebhook(tx, principal, id);
  return append(tx, {
    org_id: principal.org_id,
    type: 'webhook.ping',
    data: { webhook: webhookView(row) },
    actor: actorOf(principal),
  });
}
