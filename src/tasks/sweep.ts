import { deleteOldPlaces } from '../auth/known-place-store.ts';
import { sweepUnconfirmedFactors } from '../auth/mfa/store.ts';
import { deleteExpired } from '../auth/store.ts';
import { deleteOldAnswers } from '../db/idempotency-store.ts';
import { deleteDeadJobs } from '../db/jobs.ts';
import type { Db } from '../db/pool.ts';
import { deleteOldEvents } from '../events/store.ts';
import { deleteOldNotifications } from '../notifications/store.ts';
import { deleteExpiredInvitations } from '../orgs/invitation-store.ts';
import { deleteExpiredTickets } from '../vms/console-ticket-store.ts';
import { deleteEndedFlushes } from '../vms/flush-store.ts';
import { pruneDeliveries } from '../webhooks/prune-store.ts';

/** Removes what is past its time: ended flushes and kept answers after a day, sessions, grants, tokens; deliveries after 14, events after 30, notifications after 90; places after a year. */
export async function sweep(db: Db): Promise<void> {
  await deleteEndedFlushes(db);
  await deleteOldAnswers(db);
  await deleteExpiredTickets(db);
  await deleteExpiredInvitations(db);
  await sweepUnconfirmedFactors(db);
  await deleteExpired(db);
  await deleteOldEvents(db);
  await pruneDeliveries(db);
  await deleteDeadJobs(db);
  await deleteOldNotifications(db);
  await deleteOldPlaces(db);
}
