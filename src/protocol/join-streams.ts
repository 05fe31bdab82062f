import type { Duplex } from 'node:stream';
import { passParts } from '../shared/pass-parts.ts';

/**
 * Passes two streams into each other. When one closes, the other closes too, after it got everything that the first had
 * sent. Half-open works: one side may still send after the other has ended.
 */
export function joinStreams(one: Duplex, other: Duplex): void {
  for (const [from, to] of [
    [one, other],
    [other, one],
  ] as const) {
    from.allowHalfOpen = true;
    from.on('error', () => from.destroy());
    from.once('close', () => {
      // Data up to its end is still buffered, so flush that first. Nothing reads the other side from now on, so it would
      // never end by itself.
      if (from.readableEnded) to.end(() => to.destroy());
      else to.destroy();
    });
  }
  if (one.destroyed || other.destroyed) {
    one.destroy();
    other.destroy();
    return;
  }
  passParts(one, other);
  passParts(other, one);
}
