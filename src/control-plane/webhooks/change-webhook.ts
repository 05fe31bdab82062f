/**
 * Changes webhooks and their deliveries: creates, changes, disables, pings and deletes a webhook; shows a delivery, and
 * sends one or many again.
 */
import { present } from '../../shared/assert.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import { type EventId, newId, type OrgId, type WebhookDeliveryId, type WebhookId } from '../../shared/ids.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { presentAdmin } from '../organisations/members.ts';
import { checkQuota } from '../organisations/quotas.ts';
import { lockOrganisation } from '../organisations/store.ts';
import { deliveryTarget, messageBody, messageHeaders, newSecret, type SentRequest } from './attempt.ts';
import { notifyChanged, wakeSenders } from './fan-out.ts';
import {
  type DisabledReason,
  MAX_REPLAY,
  REPLAY_DAYS,
  type Wanted,
  type WebhookStatus,
  wantedTypes,
  webhookView,
} from './model.ts';
import {
  type DeliveryRow,
  disableWebhook,
  enableWebhook,
  findDelivery,
  findReceiver,
  findSentEvent,
  findWebhook,
  insertWebhook,
  listDispatchedSince,
  lockWebhook,
  markWebhookDeleted,
  type Receiver,
  redeliver,
  replaceWebhookSecret,
  replayDeliveries,
  updateWebhook,
  type WebhookChange,
  type WebhookRow,
} from './store.ts';

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

/** Called with the locked row; throws to refuse the change. */
export type Check = (before: WebhookRow) => void;

/** Locks a webhook of the caller's organisation. @throws AppError NOT_FOUND */
async function lockedWebhook(tx: Tx, { org_id }: Principal, id: WebhookId): Promise<WebhookRow> {
  const row = await lockWebhook(tx, org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  return row;
}

/** As {@link lockedWebhook}. @throws AppError CONFLICT when it is disabled */
async function enabledWebhook(tx: Tx, principal: Principal, id: WebhookId): Promise<WebhookRow> {
  const row = await lockedWebhook(tx, principal, id);
  if (row.status === 'enabled') return row;
  throw new AppError('CONFLICT', {
    message: 'The webhook is disabled; enable it first (PATCH with status "enabled").',
  });
}

/**
 * @param change its `url` has passed `Outbound.checkUrl`
 * @throws AppError NOT_FOUND, FORBIDDEN when the caller was removed during that check
 */
export async function changeWebhook(
  tx: Tx,
  principal: Principal,
  id: WebhookId,
  { status, ...change }: WebhookChange & { readonly status?: WebhookStatus },
  check: Check,
): Promise<WebhookRow> {
  await lockOrganisation(tx, principal.org_id);
  await presentAdmin(tx, principal);
  const before = await lockedWebhook(tx, principal, id);
  check(before);
  if (Object.keys(change).length > 0) {
    await updateWebhook(tx, id, change);
    await notifyChanged(tx, id);
  }
  if (status === 'disabled') await disable(tx, id, 'requested', actorOf(principal));
  if (status === 'enabled' && before.status === 'disabled') await enableWebhook(tx, id);
  return present(await findWebhook(tx, principal.org_id, id), 'webhook after its change');
}

/** Requests in flight end; no further request begins. @throws AppError NOT_FOUND */
export async function deleteWebhook(
  tx: Tx,
  principal: Principal,
  id: WebhookId,
  check: Check,
): Promise<WebhookRow> {
  const row = await lockedWebhook(tx, principal, id);
  check(row);
  await markWebhookDeleted(tx, id);
  await notifyChanged(tx, id);
  return row;
}

/** A new secret; the present one signs beside it for `grace_seconds`. @throws AppError NOT_FOUND */
export async function rotateSecret(
  tx: Tx,
  principal: Principal,
  secrets: Sealer,
  id: WebhookId,
  grace_seconds: number,
  check: Check,
): Promise<WebhookRow & { secret: string }> {
  check(await lockedWebhook(tx, principal, id));
  const secret = newSecret();
  const row = await replaceWebhookSecret(tx, id, secrets.seal(secret, id), grace_seconds);
  await notifyChanged(tx, id);
  return { ...row, secret };
}

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
  const headers = messageHeaders(deliveryTarget(receiver, secrets).keys, event_id, body, at_ms);
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
  const events = await listDispatchedSince(tx, principal.org_id, types, since, MAX_REPLAY + 1);
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
