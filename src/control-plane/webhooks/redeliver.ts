import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { WebhookDeliveryId, WebhookId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import { enabledWebhook } from './change-webhook.ts';
import { type DeliveryRow, findDelivery, redeliver } from './delivery-store.ts';
import { REPLAY_DAYS } from './model.ts';
import { wakeSenders } from './wake.ts';

/** Sends a delivery again, whatever its state, with a new backoff. @throws AppError NOT_FOUND, CONFLICT */
export async function redeliverDelivery(
  tx: Tx,
  principal: Principal,
  id: WebhookId,
  delivery_id: WebhookDeliveryId,
): Promise<DeliveryRow> {
  const webhook = await enabledWebhook(tx, principal, id);
  if (!(await findDelivery(tx, webhook.id, delivery_id))) throw new AppError('NOT_FOUND');
  if (!(await redeliver(tx, delivery_id, REPLAY_DAYS))) {
    throw new AppError('CONFLICT', { message: `Its event is older than ${REPLAY_DAYS} days.` });
  }
  wakeSenders(tx, [webhook.id]);
  return present(await findDelivery(tx, webhook.id, delivery_id), 'delivery after its change');
}
