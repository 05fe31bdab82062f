/** Webhooks themselves. One without an organisation is deleted, and found by the sweep alone. */
import { sql } from 'kysely';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import type { OrgId, WebhookId } from '../lib/ids.ts';
import { failFresh } from './fresh-store.ts';
import type { DisabledReason } from './model.ts';

const SHOWN = [
  'id',
  'name',
  'url',
  'events',
  'status',
  'disabled_reason',
  'disabled_at',
  'previous_expires_at',
  'failing_since',
  'proven_at',
  'version',
  'created_by',
  'created_at',
  'updated_at',
] as const;

export type WebhookRow = Awaited<ReturnType<typeof insertWebhook>>;

export interface NewWebhook {
  readonly id: WebhookId;
  readonly org_id: OrgId;
  readonly name: string;
  readonly url: string;
  readonly events: string[];
  readonly secret: Buffer;
  readonly created_by: string;
}

export async function insertWebhook(tx: Tx, webhook: NewWebhook) {
  return tx.insertInto('webhooks').values(webhook).returning(SHOWN).executeTakeFirstOrThrow();
}

export async function listWebhooks(tx: Tx, org_id: OrgId, before: string | null, limit: number) {
  let query = tx.selectFrom('webhooks').select(SHOWN).where('org_id', '=', org_id);
  if (before !== null) query = query.where('id', '<', before as WebhookId);
  return query.orderBy('id', 'desc').limit(limit).execute();
}

export async function findWebhook(tx: Tx, org_id: OrgId, id: WebhookId): Promise<WebhookRow | undefined> {
  return tx
    .selectFrom('webhooks')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .executeTakeFirst();
}

/** As {@link findWebhook}, held until the transaction's end. */
export async function lockWebhook(tx: Tx, org_id: OrgId, id: WebhookId): Promise<WebhookRow | undefined> {
  return tx
    .selectFrom('webhooks')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .forNoKeyUpdate()
    .executeTakeFirst();
}

const CHANGED = {
  version: sql<number>`version + 1`,
  updated_at: sql<Date>`now()`,
} as const;
/** A receiver gets a new chance. */
const HEALTHY = { failing_since: null, failing_told: false, slow: false } as const;

/** Another URL has to prove itself. */
const provenAt = (url: string) => ({
  proven_at: sql<Date | null>`case when url = ${url} then proven_at end`,
});

export interface WebhookChange {
  readonly name?: string;
  readonly url?: string;
  readonly events?: string[];
}

export async function updateWebhook(tx: Tx, id: WebhookId, change: WebhookChange): Promise<WebhookRow> {
  return tx
    .updateTable('webhooks')
    .set({
      ...change,
      ...(change.url === undefined ? {} : { ...HEALTHY, ...provenAt(change.url) }),
      ...CHANGED,
    })
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** What was handed out in the moment of the disabling has failed with the rest. */
export async function enableWebhook(tx: Tx, id: WebhookId): Promise<WebhookRow> {
  await failPending(tx, id);
  return tx
    .updateTable('webhooks')
    .set({ status: 'enabled', disabled_reason: null, disabled_at: null, ...HEALTHY, ...CHANGED })
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** Nothing waits for it any more; what waited has failed. Undefined when it was disabled already, or has another URL than `addresses`. */
export async function disableWebhook(
  tx: Tx,
  id: WebhookId,
  reason: DisabledReason,
  addresses?: readonly string[],
): Promise<(WebhookRow & { org_id: OrgId | null }) | undefined> {
  let update = tx
    .updateTable('webhooks')
    .set({ status: 'disabled', disabled_reason: reason, disabled_at: sql<Date>`now()`, ...CHANGED })
    .where('id', '=', id)
    .where('status', '=', 'enabled');
  if (addresses) update = update.where('url', 'in', addresses);
  const row = await update.returning([...SHOWN, 'org_id']).executeTakeFirst();
  if (row) await failPending(tx, id);
  return row;
}

/** Of a webhook that is disabled still: what was handed out in the moment of the disabling has failed with the rest. */
export async function failLeftBehind(db: Db, id: WebhookId): Promise<void> {
  await transaction(db, async (tx) => {
    const disabled = await tx
      .selectFrom('webhooks')
      .select('id')
      .where('id', '=', id)
      .where('status', '=', 'disabled')
      .forNoKeyUpdate()
      .executeTakeFirst();
    if (disabled) await failPending(tx, id);
  });
}

async function failPending(tx: Tx, id: WebhookId): Promise<void> {
  await failFresh(tx, id);
  await tx
    .updateTable('webhook_deliveries')
    .set({ state: 'failed', next_attempt_at: null })
    .where('webhook_id', '=', id)
    .where('state', '=', 'pending')
    .execute();
}

/** The secret before this one signs too for `grace_seconds` more; any before that no longer. */
export async function replaceWebhookSecret(
  tx: Tx,
  id: WebhookId,
  secret: Buffer,
  grace_seconds: number,
): Promise<WebhookRow> {
  const overlap = grace_seconds > 0;
  return tx
    .updateTable('webhooks')
    .set({
      secret,
      previous_secret: overlap ? sql<Buffer>`secret` : null,
      previous_expires_at: overlap
        ? sql<Date>`date_trunc('milliseconds', now()) + make_interval(secs => ${grace_seconds})`
        : null,
      ...CHANGED,
    })
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** At once for everybody; its deliveries are removed by the sweep. */
export async function markWebhookDeleted(tx: Tx, id: WebhookId): Promise<void> {
  await tx.updateTable('webhooks').set({ org_id: null }).where('id', '=', id).execute();
}

/** One of these, if it is the webhook's URL still, has answered 2xx. */
export async function markProven(tx: Tx, id: WebhookId, addresses: readonly string[]): Promise<void> {
  await tx
    .updateTable('webhooks')
    .set({ proven_at: sql<Date>`date_trunc('milliseconds', now())` })
    .where('id', '=', id)
    .where('proven_at', 'is', null)
    .where('url', 'in', [...addresses])
    .execute();
}

/** Once: true when the organisation is to be told that deliveries keep failing. */
export async function markFailingTold(tx: Tx, id: WebhookId): Promise<WebhookRow | undefined> {
  return tx
    .updateTable('webhooks')
    .set({ failing_told: true })
    .where('id', '=', id)
    .where('failing_told', '=', false)
    .returning(SHOWN)
    .executeTakeFirst();
}

/** The organisation; null when the webhook is deleted. */
export async function findOwner(tx: Tx, id: WebhookId): Promise<OrgId | null> {
  const row = await tx.selectFrom('webhooks').select('org_id').where('id', '=', id).executeTakeFirst();
  return row?.org_id ?? null;
}
