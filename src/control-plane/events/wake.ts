/**
 * Wakes this process's dispatcher after the commit of an event. This is no NOTIFY: commits that notify take one lock of
 * the whole server in turn. Each process that commits events has a dispatcher, and a timer finds what a process that
 * died left behind.
 */
import { Signal } from '../../shared/signal.ts';

const committed = new Signal();
export const wakeDispatcher = committed.notify;

/** Calls `wake` after each commit of an event in this process. Returns the function that unsubscribes. */
export const onCommitted = committed.subscribe;
