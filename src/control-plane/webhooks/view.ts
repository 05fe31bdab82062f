import { rfc3339 } from '../../shared/clock.ts';
import { resourceOf } from '../events/resource.ts';
import type { AttemptRow, DeliveryRow } from './delivery-store.ts';
import type { SentRequest } from './message.ts';
import type { WebhookRow } from './store.ts';

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
