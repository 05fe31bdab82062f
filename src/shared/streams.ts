/**
 * Copies bytes between streams, with back-pressure and fairly: all copies of the process share a budget of 1 MiB for
 * each turn of the event loop, and pause until the next turn when it is used up. So a fast stream starves no other.
 *
 * `passParts` copies in one direction, `joinStreams` in both; they use the budget. `writeOrPause` writes one chunk
 * from an event and pauses its source until the writable drains; it does not use the budget.
 */
import type { Duplex, Readable, Writable } from 'node:stream';

/** Some milliseconds of copying. */
export const BYTES_OF_A_TURN = 2 ** 20;

let passed = 0;
let waiting: (() => void)[] = [];

function beginTurn(): void {
  passed = 0;
  const begin = waiting;
  waiting = [];
  for (const resume of begin) resume();
}

function count(bytes: number): void {
  if (passed === 0) setImmediate(beginTurn);
  passed += bytes;
}

/**
 * @param options.end ends `to` when `from` ends (default). @returns stops; `from` then stays paused
 */
export function passParts(from: Readable, to: Writable, { end = true } = {}): () => void {
  let stopped = false;
  const resume = () => {
    if (stopped) return;
    if (passed >= BYTES_OF_A_TURN) waiting.push(resume);
    else from.resume();
  };
  const pass = (part: Buffer) => {
    count(part.length);
    const has_room = to.write(part);
    if (has_room && passed < BYTES_OF_A_TURN) return;
    from.pause();
    if (has_room) resume();
    else to.once('drain', resume);
  };
  const finish = () => to.end();
  const stop = () => {
    if (stopped) return;
    stopped = true;
    from.off('data', pass).off('end', finish).pause();
    to.off('drain', resume).off('close', stop);
  };
  from.on('data', pass);
  if (end) from.once('end', finish);
  to.once('close', stop);
  // A stream that was paused does not flow by itself.
  if (to.writableNeedDrain) to.once('drain', resume);
  else from.resume();
  return stop;
}

interface Source {
  pause(): unknown;
  resume(): unknown;
}

const paused = new WeakMap<Writable, Set<Source>>();

/**
 * Writes a part that came by an event. While the writable is full, its source is paused; parts that were read before the
 * pause still come, so a writable has one listener for all of them, and for all of its sources.
 */
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
