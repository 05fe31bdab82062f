/** The body and the headers of a request. */
import { createHmac, createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import { assert } from '../../shared/assert.ts';
import type { EventId, OrgId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Receiver } from './sender-store.ts';

/**
 * The symmetric signatures of Standard Webhooks (https://www.standardwebhooks.com): `v1,` and the base64 of an
 * HMAC-SHA-256 over `id.timestamp.body`, separated by spaces.
 */

const PREFIX = 'whsec_';
const SECRET_BYTES = 32;

export function newSecret(): string {
  return PREFIX + randomBytes(SECRET_BYTES).toString('base64');
}

/** A KeyObject: with a buffer each signature would take five times as long. */
export function signingKey(secret: string): KeyObject {
  assert(secret.startsWith(PREFIX), 'a webhook secret begins with whsec_');
  return createSecretKey(secret.slice(PREFIX.length), 'base64');
}

/** @param timestamp_s seconds since the epoch */
export function signature(keys: readonly KeyObject[], id: string, timestamp_s: number, body: string): string {
  const text = `${id}.${timestamp_s}.${body}`;
  return keys.map((key) => `v1,${createHmac('sha256', key).update(text).digest('base64')}`).join(' ');
}

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

/** Where a webhook's deliveries go and what signs them, when its row was last read. */
export interface Target {
  /** The webhook's URL, as its row has it. */
  readonly address: string;
  readonly url: URL | string;
  readonly keys: readonly KeyObject[];
}

/** @throws Error when a secret does not open */
export function targetOf({ id, url, secret, previous_secret }: Receiver, secrets: Sealer): Target {
  const keys = [secret, previous_secret].flatMap((sealed) => {
    if (sealed === null) return [];
    const plain = secrets.open(sealed, id);
    if (plain === null) throw new Error('a webhook secret does not open with the root key');
    return [signingKey(plain)];
  });
  return { address: url, url: URL.parse(url) ?? '', keys };
}
