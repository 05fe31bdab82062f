/** Tells this process's sealer that an audit entry was committed, as `events/wake.ts` does for events. */
import { Wake } from '../lib/wake.ts';

const committed = new Wake();
export const wakeSealer = committed.all;

/** Calls `wake` after each commit of an audit entry in this process. Returns the undoing. */
export const onAuditCommitted = committed.on;
