import { invalid } from '../../shared/errors.ts';
import type { WebhookId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import { enabledWebhook } from './change-webhook.ts';
import { listEventsSince, replayDeliveries } from './delivery-store.ts';
import { MAX_REPLAY, REPLAY_DAYS, wantedTypes } from './model.ts';
import { notifyChanged, wakeSenders } from './wake.ts';

const DAY_MS = 86_400_000;

/**
 * Sends again every event since then that the webhook asks for, in order: delivered, failed, or missed while the webhook
 * was disabled or did not exist. Returns how many. @throws AppError NOT_FOUND, CONFLICT, INVALID_REQUEST
 */
export async function replaySince(tx: Tx, principal: Principal, id: WebhookId, since: Date): Promise<number> {
  if (since.getTime() < Date.now() - REPLAY_DAYS * DAY_MS) {
    throw invalid('since', `must be at most ${REPLAY_DAYS} days ago`);
  }
  const webhook = await enabledWebhook(tx, principal, id);
  const types = wantedTypes(webhook.events);
  if (types.length === 0) return 0;
  const events = await listEventsSince(tx, principal.org_id, types, since, MAX_REPLAY + 1);
  if (events.length > MAX_REPLAY) {
    throw invalid('since', `more than ${MAX_REPLAY} events have happened since; take a later time`);
  }
  if (events.length === 0) return 0;
  await replayDeliveries(
    tx,
    events.map((event) => ({ ...event, webhook_id: webhook.id })),
  );
  await notifyChanged(tx, webhook.id);
  wakeSenders(tx, [webhook.id]);
  return events.length;
}
