/** One delivery with its attempts; sends one again, or all since a time. */
import { present } from '../../shared/assert.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import type { OrgId, WebhookDeliveryId, WebhookId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import { enabledWebhook } from './change-webhook.ts';
import { notifyChanged, wakeSenders } from './fan-out.ts';
import { messageBody, messageHeaders, type SentRequest, targetOf } from './message.ts';
import { MAX_REPLAY, REPLAY_DAYS, wantedTypes } from './model.ts';
import { findReceiver, findSentEvent, type Receiver } from './sender-store.ts';
import { type DeliveryRow, findDelivery, listEventsSince, redeliver, replayDeliveries } from './store.ts';

export interface ShownDelivery {
  readonly row: DeliveryRow;
  /** Null: its event has expired. */
  readonly request: SentRequest | null;
}

/** A delivery with its request. @throws AppError NOT_FOUND */
export async function showDelivery(
  tx: Tx,
  secrets: Sealer,
  org_id: OrgId,
  webhook_id: WebhookId,
  id: WebhookDeliveryId,
): Promise<ShownDelivery> {
  const receiver = await findReceiver(tx, webhook_id);
  if (receiver?.org_id !== org_id) throw new AppError('NOT_FOUND');
  const row = await findDelivery(tx, webhook_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  return { row, request: await requestOf(tx, secrets, receiver, row) };
}

/**
 * The request of the last attempt; before the first, the request as it would be sent now. The body is not stored: the
 * event makes the same bytes again. The signatures are those of the present secrets.
 */
async function requestOf(
  tx: Tx,
  secrets: Sealer,
  receiver: Receiver,
  { event_id, last_attempts }: DeliveryRow,
): Promise<SentRequest | null> {
  const event = await findSentEvent(tx, event_id);
  if (!event) return null;
  const last = last_attempts.at(-1);
  const body = messageBody(event);
  const at_ms = last === undefined ? Date.now() : Date.parse(last.at);
  const headers = messageHeaders(targetOf(receiver, secrets).keys, event_id, body, at_ms);
  return { method: 'POST', url: last?.url ?? receiver.url, headers, body };
}

/** Sends a delivery again, whatever its state, with a new backoff. @throws AppError NOT_FOUND, CONFLICT */
export async function redeliverDelivery(
  tx: Tx,
  principal: Principal,
  id: WebhookId,
  delivery_id: WebhookDeliveryId,
): Promise<DeliveryRow> {
  const webhook = await enabledWebhook(tx, principal, id);
  if (!(await findDelivery(tx, webhook.id, delivery_id))) throw new AppError('NOT_FOUND');
  if (!(await redeliver(tx, delivery_id, REPLAY_DAYS))) {
    throw new AppError('CONFLICT', { message: `Its event is older than ${REPLAY_DAYS} days.` });
  }
  wakeSenders(tx, [webhook.id]);
  return present(await findDelivery(tx, webhook.id, delivery_id), 'delivery after its change');
}

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
