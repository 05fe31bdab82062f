/** Records outcomes, and what follows from them for their webhook: it is proven, failing, or disabled. */

import type { WebhookId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { disable } from './disable.ts';
import { GONE, type Outcome } from './outcome.ts';
import { noteHealth, recordOutcomes } from './outcome-store.ts';
import { findOwner, markFailingTold, markProven } from './store.ts';
import { webhookView } from './view.ts';

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
