/** What an answer means for its delivery. Pure. */
import type { WebhookDeliveryId } from '../../shared/ids.ts';
import { retryDelayMs } from './backoff.ts';
import type { DeliveryState } from './model.ts';
import type { Answer } from './outbound/outbound.ts';

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
