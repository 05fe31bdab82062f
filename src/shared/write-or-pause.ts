/**
 * Writes a part that came by an event. While the writable is full, its source is paused; parts that were read before the pause still
 * come, so a writable has one listener for all of them, and for all of its sources.
 */
import type { Writable } from 'node:stream';

interface Source {
  pause(): unknown;
  resume(): unknown;
}

const paused = new WeakMap<Writable, Set<Source>>();

export function writeOrPause(from: Source, to: Writable, part: Uint8Array): void {
  if (to.write(part)) return;
  from.pause();
  const waiting = paused.get(to);
  if (waiting) {
    waiting.add(from);
    return;
  }
  const sources = new Set([from]);
  paused.set(to, sources);
  to.once('drain', () => {
    paused.delete(to);
    for (const each of sources) each.resume();
  });
}
