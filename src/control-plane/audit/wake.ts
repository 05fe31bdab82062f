/** Wakes this process's sealer after the commit of an audit entry, as `control-plane/events/wake.ts` wakes the dispatcher. */
import { Signal } from '../../shared/signal.ts';

const committed = new Signal();
export const wakeSealer = committed.notify;

/** Calls `wake` after each commit of an audit entry in this process. Returns the function that unsubscribes. */
export const onAuditCommitted = committed.subscribe;
