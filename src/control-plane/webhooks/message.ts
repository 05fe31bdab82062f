/** The body and the headers of a request. */
import type { KeyObject } from 'node:crypto';
import type { EventId, OrgId } from '../../shared/ids.ts';
import { signature } from './sign.ts';

export interface SentEvent {
  readonly event_id: EventId;
  readonly org_id: OrgId | null;
  readonly type: string;
  readonly data: Record<string, unknown>;
  readonly actor: string;
  readonly sequence: number | null;
  /** RFC 3339, UTC, milliseconds. */
  readonly event_at: string;
}

/**
 * The same bytes at every attempt: it depends on the stored event only, and jsonb keeps the order of members. A later
 * version may add members at the end, and never move them.
 */
export function messageBody({ type, event_at, data, org_id, actor, sequence }: SentEvent): string {
  return JSON.stringify({ type, timestamp: event_at, data: { ...data, org_id, actor, sequence } });
}

/** A request as the API shows it. */
export interface SentRequest {
  readonly method: 'POST';
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** `webhook-id` is the event's, so a receiver recognises retries, redeliveries and replays by one rule. */
export function messageHeaders(
  keys: readonly KeyObject[],
  id: EventId,
  body: string,
  now_ms: number,
): Record<string, string> {
  const timestamp_s = Math.floor(now_ms / 1000);
  return {
    'content-type': 'application/json',
    'user-agent': 'Berth-Webhooks/1',
    'webhook-id': id,
    'webhook-timestamp': String(timestamp_s),
    'webhook-signature': signature(keys, id, timestamp_s, body),
  };
}
