/** A webhook is not any more what its sender knows of it: what that still holds is not for the webhook as it was. */
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import type { WebhookId } from '../lib/ids.ts';

/** Under the topic `webhook`, where the bare id says that there is more to send. */
export function changeOf(id: WebhookId): string {
  return `${id} changed`;
}

export async function tellOfChange(tx: Tx, id: WebhookId): Promise<void> {
  await notify(tx, 'webhook', changeOf(id));
}
