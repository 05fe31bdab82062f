/** Deletes the expired rows of every feature. The task `sweep` does this every ten minutes. */
import type { Db } from './db/pool.ts';
import { deleteEndedWindows } from './db/shared-limit.ts';
import { deleteOldEvents } from './events/store.ts';
import { deleteExpiredResponses } from './http/idempotency.ts';
import { deleteExpiredDeviceLogins, deleteOldLocations } from './identity/login-store.ts';
import { sweepUnconfirmedFactors } from './identity/mfa/store.ts';
import { deleteExpired } from './identity/store.ts';
import { deleteOldMailCounts } from './mail/store.ts';
import { deleteOldNotifications } from './notifications/store.ts';
import { deleteExpiredInvitations } from './organisations/invitation-store.ts';
import { deleteUnseenStreams } from './organisations/store.ts';
import { deleteExpiredAccess } from './ports/store.ts';
import { deleteOldUsage } from './usage/store.ts';
import { deleteExpiredTickets } from './vms/console-ticket-store.ts';
import { deleteEndedFlushes } from './vms/flush-store.ts';
import { pruneDeliveries } from './webhooks/store.ts';

const PARTS: readonly ((db: Db) => Promise<unknown>)[] = [
  deleteEndedFlushes,
  deleteExpiredResponses,
  deleteExpiredTickets,
  deleteExpiredAccess,
  deleteExpiredInvitations,
  sweepUnconfirmedFactors,
  deleteExpired,
  deleteExpiredDeviceLogins,
  deleteOldEvents,
  pruneDeliveries,
  deleteOldNotifications,
  deleteOldMailCounts,
  deleteEndedWindows,
  deleteUnseenStreams,
  deleteOldLocations,
  deleteOldUsage,
];

/**
 * Deletes expired rows: ended flushes and stored responses after a day, sessions, grants and tokens at their expiry,
 * deliveries after 14 days, events after 30, notifications after 90, login places after a year, usage after 13 months.
 * @throws AggregateError of all failures, at the end
 */
export async function sweep(db: Db): Promise<void> {
  const errors: unknown[] = [];
  for (const part of PARTS) await part(db).catch((error: unknown) => errors.push(error));
  if (errors.length > 0) throw new AggregateError(errors, 'not all expired rows were deleted');
}
