/** What became of a batch: kept with its attempts, and what follows from it for the webhook. */
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import type { WebhookId } from '../lib/ids.ts';
import { disable } from './disable.ts';
import { noteHealth } from './drain-store.ts';
import { GONE } from './outcome.ts';
import { type Outcome, recordOutcomes } from './outcome-store.ts';
import { findOwner, markFailingTold, markProven } from './store.ts';
import { webhookView } from './view.ts';

/** A delivery that has failed so often is no hiccup. */
const TELLING_TRIES = 5;

/**
 * `failing`: whether the webhook may stand as failing, or must be looked at. Answers whether it does after this batch.
 * `proven`: its URL is known to have answered 2xx.
 */
export async function record(
  db: Db,
  webhook_id: WebhookId,
  outcomes: readonly Outcome[],
  { failing, proven }: { readonly failing: boolean; readonly proven: boolean },
): Promise<boolean> {
  const taken = outcomes.filter(({ state }) => state === 'delivered');
  const took = taken.length > 0;
  if (took && !proven) await markProven(db, webhook_id, [...new Set(taken.map(({ address }) => address))]);
  const failures = outcomes.filter(({ state }) => state !== 'delivered');
  if (failures.length === 0 && !failing) {
    await recordOutcomes(db, webhook_id, outcomes, true);
    return false;
  }
  await transaction(db, async (tx) => {
    await recordOutcomes(tx, webhook_id, outcomes, false);
    const health = await noteHealth(tx, webhook_id, took);
    const gone = failures.filter(({ status }) => status === GONE).map(({ address }) => address);
    if (gone.length > 0) return disable(tx, webhook_id, 'gone', 'system', gone);
    if (took || !health) return;
    if (health.hopeless) return disable(tx, webhook_id, 'failing', 'system');
    const persists = health.persists || failures.some(({ tries }) => tries >= TELLING_TRIES);
    if (persists && !health.failing_told) await tell(tx, webhook_id);
  });
  return !took;
}

async function tell(tx: Tx, id: WebhookId): Promise<void> {
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
