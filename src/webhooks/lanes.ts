/**
 * The two lanes that webhooks are served in. Each has slots of its own, so receivers that let everybody wait take them
 * from each other only. A job says "look at this webhook"; its key is the webhook, so one waits at most.
 */
import type { NewJob } from '../jobs/store.ts';
import type { WebhookId } from '../lib/ids.ts';

export interface Lane {
  readonly task: string;
  /** Webhooks served at a time, by each process. */
  readonly slots: number;
  /** Requests to one receiver at a time that keep the order of events, and those that try again. */
  readonly parallel: { readonly first: number; readonly again: number };
  /** Then others have their turn. */
  readonly turn_ms: number;
}

export const FAST: Lane = {
  task: 'webhooks.send',
  slots: 256,
  parallel: { first: 16, again: 4 },
  turn_ms: 10_000,
};
export const SLOW: Lane = {
  task: 'webhooks.send-slow',
  slots: 64,
  parallel: { first: 4, again: 2 },
  turn_ms: 20_000,
};
/** Whoever takes longer to answer belongs into the slow lane. */
export const SLOW_MS = 2_000;

export function sendJob(webhook_id: WebhookId, slow: boolean, run_at?: Date): NewJob {
  const { task } = slow ? SLOW : FAST;
  return { task, key: webhook_id, payload: { webhook_id }, ...(run_at === undefined ? {} : { run_at }) };
}
