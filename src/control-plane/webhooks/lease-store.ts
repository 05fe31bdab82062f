/**
 * Leases: at most one process sends to a webhook. A process that dies leaves a lease that expires, and another process
 * takes it over.
 */
import { sql } from 'kysely';
import type { OrgId, WebhookId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';

/** True when `owner` holds the lease now, for `lease_s`. Otherwise wakes its holder. */
export async function takeLease(
  tx: Tx,
  webhook_id: WebhookId,
  owner: string,
  lease_s: number,
): Promise<boolean> {
  for (;;) {
    const until = sql<Date>`now() + make_interval(secs => ${lease_s})`;
    const taken = await tx
      .insertInto('webhook_leases')
      .values({ webhook_id, owner, until })
      .onConflict((conflict) =>
        conflict
          .column('webhook_id')
          .doUpdateSet({ owner, until, woken: false })
          .where('webhook_leases.until', '<', sql<Date>`now()`),
      )
      .returning('owner')
      .executeTakeFirst();
    if (taken) return true;
    const woken = await tx
      .updateTable('webhook_leases')
      .set({ woken: true })
      .where('webhook_id', '=', webhook_id)
      .returning('owner')
      .executeTakeFirst();
    // Released between the two statements: no sender was woken, and the lease is free.
    if (!woken) continue;
    await notify(tx, 'webhook', webhook_id);
    return false;
  }
}

/** Renews all leases of a process. */
export async function renewLeases(
  tx: Tx,
  owner: string,
  webhook_ids: readonly WebhookId[],
  lease_s: number,
): Promise<void> {
  await tx
    .updateTable('webhook_leases')
    .set({ until: sql<Date>`now() + make_interval(secs => ${lease_s})` })
    .where('webhook_id', 'in', webhook_ids)
    .where('owner', '=', owner)
    .execute();
}

/** False: another process has seen new deliveries meanwhile, and `owner` keeps the lease, unless `force`. */
export async function releaseLease(
  tx: Tx,
  webhook_id: WebhookId,
  owner: string,
  force: boolean,
): Promise<boolean> {
  let release = tx
    .deleteFrom('webhook_leases')
    .where('webhook_id', '=', webhook_id)
    .where('owner', '=', owner);
  if (!force) release = release.where('woken', '=', false);
  const released = await release.returning('owner').executeTakeFirst();
  if (released || force) return true;
  const kept = await tx
    .updateTable('webhook_leases')
    .set({ woken: false })
    .where('webhook_id', '=', webhook_id)
    .where('owner', '=', owner)
    .returning('owner')
    .executeTakeFirst();
  return !kept;
}

export interface DueWebhook {
  readonly id: WebhookId;
  readonly org_id: OrgId;
  /** Its URL has answered 2xx. */
  readonly proven: boolean;
}

/** Enabled webhooks with a due delivery and without a live lease. */
export async function listDueWebhooks(tx: Tx): Promise<readonly DueWebhook[]> {
  const { rows } = await sql<DueWebhook>`
    select w.id, w.org_id, w.proven_at is not null as proven from webhooks w
    where w.org_id is not null and w.status = 'enabled'
      and not exists (select from webhook_leases l where l.webhook_id = w.id and l.until >= now())
      and (
        exists (
          select from webhook_deliveries d where d.webhook_id = w.id and d.state = 'pending' and d.in_order
        ) or exists (
          select from webhook_deliveries d
          where d.webhook_id = w.id and d.state = 'pending' and not d.in_order and d.next_attempt_at <= now()
        )
      )`.execute(tx);
  return rows;
}
