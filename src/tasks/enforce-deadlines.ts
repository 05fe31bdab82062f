/** Fails the VMs that have been in a transient state for too long. */
import type { Db } from '../db/pool.ts';
import { watchDeadlines } from '../vms/apply-report.ts';
import type { DeadlineWatch } from '../vms/deadline-watch.ts';

export async function enforceDeadlines(db: Db, watch: DeadlineWatch): Promise<void> {
  await watchDeadlines(db, watch);
}
