/** Queues a job for each webhook that has a delivery due and no sender: the process that sent for it has died. */
import type { Db } from '../db/pool.ts';
import { reviveForgotten } from '../webhooks/deliveries.ts';

export async function requeueWebhooks(db: Db): Promise<void> {
  await reviveForgotten(db);
}
