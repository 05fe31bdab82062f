/**
 * Passes a stream on, as pipe() does, but fairly. On each event a socket hands over up to 2 MiB that it has received (libuv reads
 * 32 times), and a turn of the event loop serves every socket that is ready: beside a few dozen fast downloads one turn would take
 * 100 ms, and a request of somebody else takes several turns. So all streams of this process together pass about
 * {@link BYTES_OF_A_TURN} in one turn; each that has more pauses after its next part, until the next turn.
 */
import type { Readable, Writable } from 'node:stream';

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
