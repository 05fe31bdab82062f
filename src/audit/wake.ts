/** Tells this process's sealer that an audit entry was committed, as `events/wake.ts` does for events. */
import { EventEmitter } from 'node:events';

const committed = new EventEmitter().setMaxListeners(0);

export function wakeSealer(): void {
  committed.emit('entry');
}

/** Calls `wake` after each commit of an audit entry in this process. Returns the undoing. */
export function onAuditCommitted(wake: () => void): () => void {
  committed.on('entry', wake);
  return () => committed.off('entry', wake);
}
