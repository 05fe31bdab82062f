/** Webhooks. A deleted one has no organisation; the sweep removes its rows. */
import { sql } from 'kysely';
import type { OrgId, WebhookId } from '../../shared/ids.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
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

/** As {@link findWebhook}, and locks it. */
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
const HEALTHY = { failing_since: null, failing_told: false } as const;

/** A webhook with a changed URL is unproven again. */
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

/** Fails deliveries of a fan-out that ran beside the disabling. */
export async function enableWebhook(tx: Tx, id: WebhookId): Promise<WebhookRow> {
  await failPending(tx, id);
  return tx
    .updateTable('webhooks')
    .set({ status: 'enabled', disabled_reason: null, disabled_at: null, ...HEALTHY, ...CHANGED })
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

/** Fails its pending deliveries. Undefined: it is disabled already, or its URL is not one of `addresses`. */
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

/** Fails deliveries of a fan-out that ran beside the disabling, if the webhook is still disabled. */
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
  await tx
    .updateTable('webhook_deliveries')
    .set({ state: 'failed', in_order: false, next_attempt_at: null })
    .where('webhook_id', '=', id)
    .where('state', '=', 'pending')
    .execute();
}

/** The present secret signs beside the new one for `grace_seconds`; an earlier one no longer signs. */
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

/** Hides the webhook from all reads. The sweep removes its rows. */
export async function markWebhookDeleted(tx: Tx, id: WebhookId): Promise<void> {
  await tx.updateTable('webhooks').set({ org_id: null }).where('id', '=', id).execute();
}

/** These addresses have answered 2xx: the webhook is proven if its URL is one of them. */
export async function markProven(tx: Tx, id: WebhookId, addresses: readonly string[]): Promise<void> {
  await tx
    .updateTable('webhooks')
    .set({ proven_at: sql<Date>`date_trunc('milliseconds', now())` })
    .where('id', '=', id)
    .where('proven_at', 'is', null)
    .where('url', 'in', [...addresses])
    .execute();
}

/** Undefined: the organisation was told already. */
export async function markFailingTold(tx: Tx, id: WebhookId): Promise<WebhookRow | undefined> {
  return tx
    .updateTable('webhooks')
    .set({ failing_told: true })
    .where('id', '=', id)
    .where('failing_told', '=', false)
    .returning(SHOWN)
    .executeTakeFirst();
}

/** Its organisation; null: it is deleted. */
export async function findOwner(tx: Tx, id: WebhookId): Promise<OrgId | null> {
  const row = await tx.selectFrom('webhooks').select('org_id').where('id', '=', id).executeTakeFirst();
  return row?.org_id ?? null;
}
