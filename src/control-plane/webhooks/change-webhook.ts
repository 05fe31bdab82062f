import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { WebhookId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { presentAdmin } from '../organisations/owners.ts';
import { lockOrganisation } from '../organisations/store.ts';
import { disable } from './disable.ts';
import type { WebhookStatus } from './model.ts';
import { newSecret } from './sign.ts';
import {
  enableWebhook,
  findWebhook,
  lockWebhook,
  markWebhookDeleted,
  replaceWebhookSecret,
  updateWebhook,
  type WebhookChange,
  type WebhookRow,
} from './store.ts';
import { notifyChanged } from './wake.ts';

/** Called with the locked row; throws to refuse the change. */
export type Check = (before: WebhookRow) => void;

/** Locks a webhook of the caller's organisation. @throws AppError NOT_FOUND */
async function lockedWebhook(tx: Tx, { org_id }: Principal, id: WebhookId): Promise<WebhookRow> {
  const row = await lockWebhook(tx, org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  return row;
}

/** As {@link lockedWebhook}. @throws AppError CONFLICT when it is disabled */
export async function enabledWebhook(tx: Tx, principal: Principal, id: WebhookId): Promise<WebhookRow> {
  const row = await lockedWebhook(tx, principal, id);
  if (row.status === 'enabled') return row;
  throw new AppError('CONFLICT', {
    message: 'The webhook is disabled; enable it first (PATCH with status "enabled").',
  });
}

/**
 * @param change its `url` has passed `Outbound.checkUrl`
 * @throws AppError NOT_FOUND, FORBIDDEN when the caller was removed during that check
 */
export async function changeWebhook(
  tx: Tx,
  principal: Principal,
  id: WebhookId,
  { status, ...change }: WebhookChange & { readonly status?: WebhookStatus },
  check: Check,
): Promise<WebhookRow> {
  await lockOrganisation(tx, principal.org_id);
  await presentAdmin(tx, principal);
  const before = await lockedWebhook(tx, principal, id);
  check(before);
  if (Object.keys(change).length > 0) {
    await updateWebhook(tx, id, change);
    await notifyChanged(tx, id);
  }
  if (status === 'disabled') await disable(tx, id, 'requested', actorOf(principal));
  if (status === 'enabled' && before.status === 'disabled') await enableWebhook(tx, id);
  return present(await findWebhook(tx, principal.org_id, id), 'webhook after its change');
}

/** Requests in flight end; no further request begins. @throws AppError NOT_FOUND */
export async function deleteWebhook(
  tx: Tx,
  principal: Principal,
  id: WebhookId,
  check: Check,
): Promise<WebhookRow> {
  const row = await lockedWebhook(tx, principal, id);
  check(row);
  await markWebhookDeleted(tx, id);
  await notifyChanged(tx, id);
  return row;
}

/** A new secret; the present one signs beside it for `grace_seconds`. @throws AppError NOT_FOUND */
export async function rotateSecret(
  tx: Tx,
  principal: Principal,
  secrets: Sealer,
  id: WebhookId,
  grace_seconds: number,
  check: Check,
): Promise<WebhookRow & { secret: string }> {
  check(await lockedWebhook(tx, principal, id));
  const secret = newSecret();
  const row = await replaceWebhookSecret(tx, id, secrets.seal(secret, id), grace_seconds);
  await notifyChanged(tx, id);
  return { ...row, secret };
}
