import type { Duplex } from 'node:stream';

/**
 * Two streams as one, until one of them is closed: then the other is too, once it has all that the first had to say. What
 * one still says after the other has ended its own saying gets through.
 */
export function joinStreams(one: Duplex, other: Duplex): void {
  for (const [from, to] of [
    [one, other],
    [other, one],
  ] as const) {
    from.allowHalfOpen = true;
    from.on('error', () => from.destroy());
    from.once('close', () => {
      // What it has said to its end is still on its way. Nobody reads what the other says from here on, so it would not
      // come to its own end.
      if (from.readableEnded) to.end(() => to.destroy());
      else to.destroy();
    });
  }
  if (one.destroyed || other.destroyed) {
    one.destroy();
    other.destroy();
    return;
  }
  one.pipe(other).pipe(one);
}
