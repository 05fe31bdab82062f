/**
 * Computes one attempt at a delivery: the request that is sent (body, headers, signatures), and what the answer means
 * for the delivery and its next attempt. Pure, except that `newSecret` is random.
 */
import { createHmac, createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import { assert } from '../../shared/assert.ts';
import type { EventId, OrgId, WebhookDeliveryId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { DeliveryState } from './model.ts';
import type { Answer } from './outbound.ts';
import type { Receiver } from './store.ts';

// The symmetric signatures of Standard Webhooks (https://www.standardwebhooks.com): `v1,` and the base64 of an
// HMAC-SHA-256 over `id.timestamp.body`, separated by spaces.

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
export function deliveryTarget({ id, url, secret, previous_secret }: Receiver, secrets: Sealer): Target {
  const keys = [secret, previous_secret].flatMap((sealed) => {
    if (sealed === null) return [];
    const plain = secrets.open(sealed, id);
    if (plain === null) throw new Error('a webhook secret does not open with the root key');
    return [signingKey(plain)];
  });
  return { address: url, url: URL.parse(url) ?? '', keys };
}

/** Before attempts 2, 3, …: ten attempts in all, over about 45 hours. */
const DELAYS_S = [5, 30, 120, 600, 1_800, 7_200, 21_600, 43_200, 86_400] as const;
export const MAX_TRIES = DELAYS_S.length + 1;
const JITTER = 0.2;
/** The upper bound of what `Retry-After` may ask for. */
export const MAX_DELAY_MS = 86_400_000 * (1 + JITTER);

/**
 * The wait after the failure of attempt number `tries` (1, 2, …), in milliseconds: the scheduled delay ±20 %, or the
 * receiver's `Retry-After` if that is longer. Null after the last attempt.
 */
export function retryDelayMs(
  tries: number,
  retry_after_seconds: number | null,
  random: () => number = Math.random,
): number | null {
  const delay_s = DELAYS_S[tries - 1];
  if (delay_s === undefined) return null;
  const jittered_ms = delay_s * 1000 * (1 - JITTER + 2 * JITTER * random());
  return Math.round(Math.min(Math.max(jittered_ms, (retry_after_seconds ?? 0) * 1000), MAX_DELAY_MS));
}

/** The receiver asks for no further requests (RFC 9110, section 15.5.11): a failure that also disables the webhook. */
export const GONE = 410;

/** A delivery before its attempt. */
export interface Attempted {
  readonly id: WebhookDeliveryId;
  /** Over its life, and since it was last asked for. */
  readonly attempts: number;
  readonly tries: number;
}

export interface Outcome {
  readonly id: WebhookDeliveryId;
  /** The URL of the request: the webhook may have another one now. */
  readonly address: string;
  /** Of the attempt, over the delivery's life. */
  readonly number: number;
  readonly tries: number;
  readonly at: Date;
  readonly status: number | null;
  readonly latency_ms: number;
  readonly error: string | null;
  readonly response: string;
  readonly response_headers: Readonly<Record<string, string>>;
  readonly state: DeliveryState;
  /** Null unless it is pending. */
  readonly retry_in_ms: number | null;
}

export function outcomeOf(
  { id, attempts, tries }: Attempted,
  address: string,
  answer: Answer,
  at: Date,
  random: () => number = Math.random,
): Outcome {
  const { status, latency_ms, error, response, response_headers, retry_after_seconds } = answer;
  const delivered = status !== null && status >= 200 && status < 300;
  const retry_in_ms = delivered ? null : retryDelayMs(tries + 1, retry_after_seconds, random);
  return {
    id,
    address,
    number: attempts + 1,
    tries: tries + 1,
    at,
    status,
    latency_ms,
    error: error ?? problemOf(status),
    response,
    response_headers,
    state: delivered ? 'delivered' : retry_in_ms === null ? 'failed' : 'pending',
    retry_in_ms,
  };
}

function problemOf(status: number | null): string | null {
  if (status === null || (status >= 200 && status < 300)) return null;
  return status >= 300 && status < 400 ? 'a redirect, which is not followed' : 'not a 2xx status';
}
