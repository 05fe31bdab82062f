import assert from 'node:assert/strict';
import { once } from 'node:events';
import { PassThrough, Readable, Writable } from 'node:stream';
import { describe, test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { BYTES_OF_A_TURN, passParts } from './streams.ts';

const PART = Buffer.alloc(65_536, 'x');

/** Always has more. */
const endless = () =>
  new Readable({
    highWaterMark: 1,
    read() {
      this.push(PART);
    },
  });

class Counter extends Writable {
  bytes = 0;
  override _write(part: Buffer, _: BufferEncoding, done: () => void): void {
    this.bytes += part.length;
    done();
  }
}

describe('parts of streams', () => {
  test('all streams together pass about a mebibyte in a turn of the event loop', async () => {
    const sinks = Array.from({ length: 20 }, () => new Counter({ highWaterMark: 2 ** 30 }));
    const stops = sinks.map((sink) => passParts(endless(), sink));
    const total = () => sinks.reduce((sum, { bytes }) => sum + bytes, 0);
    for (let turn = 0, before = 0; turn < 20; turn++) {
      await nextTurn();
      assert(
        total() - before <= BYTES_OF_A_TURN + sinks.length * PART.length,
        `${total() - before} bytes in a turn`,
      );
      before = total();
    }
    assert(sinks.every(({ bytes }) => bytes > 0));
    for (const stop of stops) stop();
  });

  test('a stream arrives whole, also through a slow sink, and ends it', async () => {
    const sent = Array.from({ length: 100 }, (_, at) => Buffer.alloc(50_000, at));
    const got: Buffer[] = [];
    const slow = new Writable({
      highWaterMark: 1,
      write(part: Buffer, _, done) {
        got.push(part);
        setImmediate(done);
      },
    });
    passParts(Readable.from(sent), slow);
    await once(slow, 'finish');
    assert(Buffer.concat(sent).equals(Buffer.concat(got)));
  });

  test('a stream that was paused flows', async () => {
    const from = new PassThrough().pause();
    const sink = new Counter();
    passParts(from, sink);
    from.end(PART);
    await once(sink, 'finish');
    assert.equal(sink.bytes, PART.length);
  });

  test('a sink that closes stops its stream', async () => {
    const from = endless();
    const sink = new PassThrough();
    passParts(from, sink);
    sink.destroy();
    await once(sink, 'close');
    assert(from.isPaused());
    assert.equal(from.listenerCount('data'), 0);
  });

  test('a sink without room gets no more until it has drained', async () => {
    const sink = new PassThrough({ highWaterMark: 1 });
    const stop = passParts(endless(), sink);
    for (let turn = 0; turn < 10; turn++) await nextTurn();
    assert(sink.writableLength + sink.readableLength <= 3 * PART.length);
    stop();
  });

  test('a stopped stream neither flows nor ends its sink', async () => {
    const from = new PassThrough();
    const sink = new Counter();
    const stop = passParts(from, sink);
    from.write(PART);
    await nextTurn();
    stop();
    from.end(PART);
    await nextTurn();
    assert.deepEqual([sink.bytes, sink.writableEnded], [PART.length, false]);
  });
});
