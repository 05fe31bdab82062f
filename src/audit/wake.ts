/** Wakes this process's sealer after the commit of an audit entry, as `events/wake.ts` wakes the dispatcher. */
import { Wake } from '../lib/wake.ts';

const committed = new Wake();
export const wakeSealer = committed.all;

/** Calls `wake` after each commit of an audit entry in this process. Returns the function that unsubscribes. */
export const onAuditCommitted = committed.on;
