/**
 * Tells this process's dispatcher that an event was committed. A NOTIFY in every transaction would do it across
 * processes, but commits that notify take one lock of the whole server in turn; whoever commits has a dispatcher of its
 * own, and a timer finds what a process that died left behind.
 */
import { Wake } from '../lib/wake.ts';

const committed = new Wake();
export const wakeDispatcher = committed.all;

/** Calls `wake` after each commit of an event in this process. Returns the undoing. */
export const onCommitted = committed.on;
