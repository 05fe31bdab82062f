/**
 * Defines the states of webhooks and deliveries, the events that a webhook may ask for, and limits. Converts rows to
 * the form in which the API shows them. Pure.
 */
import { rfc3339 } from '../../shared/clock.ts';
import { EVENT_TYPES, type EventType, resourceOf } from '../events/model.ts';
import type { SentRequest } from './attempt.ts';
import type { AttemptRow, DeliveryRow, WebhookRow } from './store.ts';

export const WEBHOOK_STATUSES = ['enabled', 'disabled'] as const;
export type WebhookStatus = (typeof WEBHOOK_STATUSES)[number];
export const DELIVERY_STATES = ['pending', 'delivered', 'failed'] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];
/** `gone`: the receiver answered 410. `failing`: nothing but failures for five days. */
export type DisabledReason = 'requested' | 'gone' | 'failing';

/** Values of `events`. */
export const WANTED = [...EVENT_TYPES, '*'] as const;
export type Wanted = (typeof WANTED)[number];
export const MAX_WANTED = 50;

export const SECRET_GRACE_MAX_S = 7 * 86_400;
export const DEFAULT_GRACE_S = 86_400;
/**
 * An event expires after 30 days, and retries take up to two and a quarter, so older events are not sent again. If a
 * receiver asks for long waits, its event may expire before the last retry; then the delivery fails.
 */
export const REPLAY_DAYS = 27;
export const MAX_REPLAY = 100_000;

/** A ping is for one webhook, whatever its `events`. */
const PUBLIC: ReadonlySet<string> = new Set<EventType>(EVENT_TYPES.filter((type) => type !== 'webhook.ping'));

export function isPublic(type: string): boolean {
  return PUBLIC.has(type);
}

export function wants(events: readonly string[], type: string): boolean {
  return isPublic(type) && (events.includes('*') || events.includes(type));
}

/** The types that `events` asks for. */
export function wantedTypes(events: readonly string[]): readonly string[] {
  return [...PUBLIC].filter((type) => wants(events, type));
}

export function webhookView(row: WebhookRow) {
  return {
    id: row.id,
    url: row.url,
    events: row.events,
    name: row.name,
    status: row.status,
    disabled_reason: row.disabled_reason,
    disabled_at: row.disabled_at && rfc3339(row.disabled_at),
    failing_since: row.failing_since && rfc3339(row.failing_since),
    proven_at: row.proven_at && rfc3339(row.proven_at),
    previous_secret_expires_at: row.previous_expires_at && rfc3339(row.previous_expires_at),
    created_by: row.created_by,
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
  };
}

export function deliveryView(row: DeliveryRow) {
  return {
    id: row.id,
    event_id: row.event_id,
    event_type: row.event_type,
    resource: row.event_type === null ? null : resourceOf(row.event_type, row.event_data),
    instance_id: row.instance_id,
    status: row.state,
    attempt_count: row.attempts,
    next_attempt_at: row.next_attempt_at && rfc3339(row.next_attempt_at),
    created_at: rfc3339(row.created_at),
    attempts: row.last_attempts.map(attemptView),
  };
}

function attemptView({ number, at, status, latency_ms, error, response }: AttemptRow) {
  return { number, at: rfc3339(new Date(at)), status, latency_ms, error, response };
}

/** @param request null: its event has expired */
export function deliveryDetailView(row: DeliveryRow, request: SentRequest | null) {
  const attempts = row.last_attempts.map((attempt) => ({
    ...attemptView(attempt),
    url: attempt.url,
    response_headers: attempt.response_headers,
  }));
  return { ...deliveryView(row), request, attempts };
}
