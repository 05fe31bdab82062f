/**
 * Tells this process's dispatcher that an event was committed. A NOTIFY in every transaction would do it across
 * processes, but commits that notify take one lock of the whole server in turn; whoever commits has a dispatcher of its
 * own, and a timer finds what a process that died left behind.
 */
import { EventEmitter } from 'node:events';

const committed = new EventEmitter().setMaxListeners(0);

export function wakeDispatcher(): void {
  committed.emit('event');
}

/** Calls `wake` after each commit of an event in this process. Returns the undoing. */
export function onCommitted(wake: () => void): () => void {
  committed.on('event', wake);
  return () => committed.off('event', wake);
}
