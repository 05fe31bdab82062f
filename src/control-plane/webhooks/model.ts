/** States of webhooks and deliveries, the events that a webhook may ask for, and limits. Pure. */
import { EVENT_TYPES, type EventType } from '../events/model.ts';

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

export const MAX_GRACE_S = 7 * 86_400;
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
