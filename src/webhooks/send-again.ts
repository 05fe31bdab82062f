/** What people ask to be sent: a ping, one delivery again, all events since a time. */
import { actorOf, type Principal } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { addJobs } from '../jobs/store.ts';
import { present } from '../lib/assert.ts';
import { AppError, invalid } from '../lib/errors.ts';
import type { EventId, WebhookDeliveryId, WebhookId } from '../lib/ids.ts';
import { enabledWebhook } from './change-webhook.ts';
import {
  type DeliveryRow,
  findDelivery,
  insertDeliveriesAgain,
  listEventsSince,
  redeliver,
} from './delivery-store.ts';
import { writeFresh } from './fresh-store.ts';
import { sendJob } from './lanes.ts';
import { MAX_REPLAY, REPLAY_DAYS, wantedTypes } from './model.ts';
import { webhookView } from './view.ts';

const DAY_MS = 86_400_000;

/** To this webhook alone, whatever its `events`. @throws AppError NOT_FOUND, CONFLICT */
export async function pingWebhook(tx: Tx, principal: Principal, id: WebhookId): Promise<EventId> {
  const row = await enabledWebhook(tx, principal, id);
  return append(tx, {
    org_id: principal.org_id,
    type: 'webhook.ping',
    data: { webhook: webhookView(row) },
    actor: actorOf(principal),
  });
}

/** Again from the start of the schedule, whatever became of it before. @throws AppError NOT_FOUND, CONFLICT */
export async function redeliverDelivery(
  tx: Tx,
  principal: Principal,
  id: WebhookId,
  delivery_id: WebhookDeliveryId,
): Promise<DeliveryRow> {
  const webhook = await enabledWebhook(tx, principal, id);
  await writeFresh(tx, webhook.id, delivery_id);
  if (!(await findDelivery(tx, webhook.id, delivery_id))) throw new AppError('NOT_FOUND');
  if (!(await redeliver(tx, delivery_id, REPLAY_DAYS))) {
    throw new AppError('CONFLICT', { message: `Its event is older than ${REPLAY_DAYS} days.` });
  }
  await addJobs(tx, [sendJob(webhook.id, false)]);
  return present(await findDelivery(tx, webhook.id, delivery_id), 'delivery after its change');
}

/**
 * Every event since then that the webhook asks for, in order: what was delivered before, what failed, and what happened
 * while it was disabled or not yet there. Answers how many. @throws AppError NOT_FOUND, CONFLICT, INVALID_REQUEST
 */
export async function replaySince(tx: Tx, principal: Principal, id: WebhookId, since: Date): Promise<number> {
  if (since.getTime() < Date.now() - REPLAY_DAYS * DAY_MS) {
    throw invalid('since', `is at most ${REPLAY_DAYS} days ago`);
  }
  const webhook = await enabledWebhook(tx, principal, id);
  const types = wantedTypes(webhook.events);
  if (types.length === 0) return 0;
  const events = await listEventsSince(tx, principal.org_id, types, since, MAX_REPLAY + 1);
  if (events.length > MAX_REPLAY) {
    throw invalid('since', `more than ${MAX_REPLAY} events have happened since; take a later time`);
  }
  // With the ids that they have been shown with.
  await writeFresh(tx, webhook.id);
  await insertDeliveriesAgain(
    tx,
    events.map((event) => ({ ...event, webhook_id: webhook.id })),
  );
  if (events.length > 0) await addJobs(tx, [sendJob(webhook.id, false)]);
  return events.length;
}
