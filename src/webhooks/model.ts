/** What a webhook is, what it wants to hear of, and the bounds. Pure. */
import { EVENT_TYPES, type EventType } from '../events/model.ts';

export const WEBHOOK_STATUSES = ['enabled', 'disabled'] as const;
export type WebhookStatus = (typeof WEBHOOK_STATUSES)[number];
export const DELIVERY_STATES = ['pending', 'delivered', 'failed'] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];
/** `gone`: the receiver answered 410. `failing`: days of nothing but failure. */
export type DisabledReason = 'requested' | 'gone' | 'failing';

/** What `events` may name. */
export const WANTED = [...EVENT_TYPES, '*'] as const;
export type Wanted = (typeof WANTED)[number];
export const MAX_WANTED = 50;

export const MAX_GRACE_S = 7 * 86_400;
export const DEFAULT_GRACE_S = 86_400;
/**
 * Events live for 30 days, and a delivery is tried for up to two and a quarter: what is older is not sent again. Where a
 * receiver asks for longer waits it may still be tried when its event goes; then it has failed.
 */
export const REPLAY_DAYS = 27;
export const MAX_REPLAY = 100_000;

/** A ping is for one webhook alone and goes there in another way. */
const PUBLIC: ReadonlySet<string> = new Set<EventType>(EVENT_TYPES.filter((type) => type !== 'webhook.ping'));

export function isPublic(type: string): boolean {
  return PUBLIC.has(type);
}

export function wants(events: readonly string[], type: string): boolean {
  return isPublic(type) && (events.includes('*') || events.includes(type));
}

/** Those that `events` asks for, by name. */
export function wantedTypes(events: readonly string[]): readonly string[] {
  return [...PUBLIC].filter((type) => wants(events, type));
}
