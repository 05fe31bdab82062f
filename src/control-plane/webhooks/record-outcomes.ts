/** Records outcomes, and what follows from them for their webhook: it is proven, failing, or disabled. */
import type { WebhookDeliveryId, WebhookId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { disable } from './change-webhook.ts';
import { type DeliveryState, webhookView } from './model.ts';
import type { Answer } from './outbound/outbound.ts';
import { noteHealth, recordOutcomes } from './sender-store.ts';
import { findOwner, markFailingTold, markProven } from './store.ts';

/** The backoff of a delivery. Pure. */

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

/** What an answer means for its delivery. Pure. */

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

/** After this many failures of one delivery the webhook counts as failing. */
const TELLING_TRIES = 5;

/**
 * @param known `failing`: the webhook's row may say that it fails; `proven`: the row says that its URL has answered 2xx
 * @returns whether the webhook fails now
 */
export async function record(
  db: Db,
  webhook_id: WebhookId,
  outcomes: readonly Outcome[],
  known: { readonly failing: boolean; readonly proven: boolean },
): Promise<boolean> {
  const successes = outcomes.filter(({ state }) => state === 'delivered');
  const failures = outcomes.filter(({ state }) => state !== 'delivered');
  const accepted = successes.length > 0;
  await transaction(db, async (tx) => {
    await recordOutcomes(tx, outcomes);
    if (accepted && !known.proven) await markProven(tx, webhook_id, addressesOf(successes));
    if (failures.length > 0 || known.failing) await judge(tx, webhook_id, accepted, failures);
  });
  return !accepted;
}

async function judge(
  tx: Tx,
  webhook_id: WebhookId,
  accepted: boolean,
  failures: readonly Outcome[],
): Promise<void> {
  const health = await noteHealth(tx, webhook_id, accepted);
  const gone = failures.filter(({ status }) => status === GONE);
  if (gone.length > 0) return disable(tx, webhook_id, 'gone', 'system', addressesOf(gone));
  if (accepted || !health) return;
  if (health.hopeless) return disable(tx, webhook_id, 'failing', 'system');
  const persists = health.persists || failures.some(({ tries }) => tries >= TELLING_TRIES);
  if (persists && !health.failing_told) await tellFailing(tx, webhook_id);
}

const addressesOf = (outcomes: readonly Outcome[]) => [...new Set(outcomes.map(({ address }) => address))];

async function tellFailing(tx: Tx, id: WebhookId): Promise<void> {
  const row = await markFailingTold(tx, id);
  const org_id = await findOwner(tx, id);
  if (!row || !org_id) return;
  await appendPrivate(tx, {
    org_id,
    user_id: null,
    type: 'webhook.failing',
    data: { webhook: webhookView(row) },
    actor: 'system',
  });
}
