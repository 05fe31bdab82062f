/**
 * Signals to senders. They are hints: the rows of `webhook_deliveries` are the truth, and each process looks for due
 * rows every two seconds.
 */
import { EventEmitter } from 'node:events';
import type { WebhookId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import { afterCommit, type Tx } from '../db/pool.ts';

const due = new EventEmitter<{ due: [readonly WebhookId[]] }>().setMaxListeners(0);

/** After the commit of `tx`, the senders of this process look for new deliveries of these webhooks. */
export function wakeSenders(tx: Tx, ids: readonly WebhookId[]): void {
  if (ids.length > 0) afterCommit(tx, () => due.emit('due', ids));
}

/** Calls `wake` for each {@link wakeSenders} of this process. Returns the function that unsubscribes. */
export function onDue(wake: (ids: readonly WebhookId[]) => void): () => void {
  due.on('due', wake);
  return () => due.off('due', wake);
}

/** The id, under the topic `webhook`, of a notification that the webhook's row or the order of its deliveries changed. */
export function changeOf(id: WebhookId): string {
  return `${id} changed`;
}

/** After the commit of `tx`, the webhook's sender, in whichever process, reads its row and its deliveries anew. */
export async function notifyChanged(tx: Tx, id: WebhookId): Promise<void> {
  await notify(tx, 'webhook', changeOf(id));
}
