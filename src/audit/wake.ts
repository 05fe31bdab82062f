/** Tells this process's sealer that an audit entry was committed, as `events/wake.ts` does for events. */
import { Signal } from '../lib/signal.ts';

const committed = new Signal();
export const wakeSealer = committed.notify;

/** Calls `wake` after each commit of an audit entry in this process. Returns the undoing. */
export const onAuditCommitted = committed.subscribe;
