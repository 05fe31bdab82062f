/** What an answer means for its delivery. Pure. */
import type { Answer } from './outbound/outbound.ts';
import type { Outcome, Tried } from './outcome-store.ts';
import { retryDelayMs } from './schedule.ts';

/** The receiver wants nothing more, ever (RFC 9110, section 15.5.11): a failure like others, for which the webhook is disabled. */
export const GONE = 410;

export function outcomeOf(
  delivery: Tried,
  address: string,
  answer: Answer,
  at: Date,
  random: () => number = Math.random,
): Outcome {
  const { attempts, tries } = delivery;
  const { status, latency_ms, error, response, retry_after_seconds } = answer;
  const delivered = status !== null && status >= 200 && status < 300;
  const retry_in_ms = delivered ? null : retryDelayMs(tries + 1, retry_after_seconds, random);
  return {
    delivery,
    address,
    number: attempts + 1,
    tries: tries + 1,
    at,
    status,
    latency_ms,
    error: error ?? problemOf(status),
    response,
    state: delivered ? 'delivered' : retry_in_ms === null ? 'failed' : 'pending',
    retry_in_ms,
  };
}

function problemOf(status: number | null): string | null {
  if (status === null || (status >= 200 && status < 300)) return null;
  return status >= 300 && status < 400 ? 'a redirect, which is not followed' : 'not a 2xx status';
}
