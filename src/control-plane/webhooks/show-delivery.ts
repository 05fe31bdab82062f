import { AppError } from '../../shared/errors.ts';
import type { OrgId, WebhookDeliveryId, WebhookId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import { type DeliveryRow, findDelivery } from './delivery-store.ts';
import { messageBody, messageHeaders, type SentRequest } from './message.ts';
import { findReceiver, findSentEvent, type Receiver } from './sender-store.ts';
import { targetOf } from './target.ts';

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
