/**
 * Tells this process's dispatcher that an event was committed. A NOTIFY in every transaction would do it across
 * processes, but commits that notify take one lock of the whole server in turn; whoever commits has a dispatcher of its
 * own, and a timer finds what a process that died left behind.
 */
import { Signal } from '../lib/signal.ts';

const committed = new Signal();
export const wakeDispatcher = committed.notify;

/** Calls `wake` after each commit of an event in this process. Returns the undoing. */
export const onCommitted = committed.subscribe;
