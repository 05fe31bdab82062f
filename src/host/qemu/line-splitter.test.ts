import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { LineSplitter, LineTooLongError } from './line-splitter.ts';

function linesOf(splitter: LineSplitter, chunk: Buffer): Buffer[] {
  const lines: Buffer[] = [];
  splitter.push(chunk);
  for (let line = splitter.next(); line; line = splitter.next()) lines.push(line);
  return lines;
}

test('any cut of a stream into chunks gives the same lines', () => {
  const line = fc
    .uint8Array({ maxLength: 20 })
    .map((bytes) => Buffer.from(bytes.map((b) => (b === 10 ? 11 : b))));
  fc.assert(
    fc.property(fc.array(line), line, fc.array(fc.nat(30)), (lines, rest, cuts) => {
      const stream = Buffer.concat([...lines.flatMap((each) => [each, Buffer.from('\n')]), rest]);
      const splitter = new LineSplitter(64);
      const out: Buffer[] = [];
      let offset = 0;
      for (const cut of cuts) {
        out.push(...linesOf(splitter, stream.subarray(offset, offset + cut)));
        offset += cut;
      }
      out.push(...linesOf(splitter, stream.subarray(offset)));
      assert.deepEqual(
        out.map((each) => each.toString('hex')),
        lines.map((each) => each.toString('hex')),
      );
      assert.equal(splitter.held_bytes, rest.length);
    }),
  );
});

test('a line over the limit is refused, complete or not; one at the limit is accepted', () => {
  assert.equal(linesOf(new LineSplitter(4), Buffer.from('1234\n')).length, 1);
  assert.throws(() => linesOf(new LineSplitter(4), Buffer.from('12345\n')), LineTooLongError);
  const splitter = new LineSplitter(4);
  assert.deepEqual(linesOf(splitter, Buffer.from('123')), []);
  assert.throws(() => linesOf(splitter, Buffer.from('45')), LineTooLongError);
  assert.equal(splitter.held_bytes, 0);
});

test('lines before one over the limit are returned; a line sent in single bytes is refused at the limit', () => {
  const splitter = new LineSplitter(4);
  splitter.push(Buffer.from('ok\n123456789'));
  assert.equal(String(splitter.next()), 'ok');
  assert.throws(() => splitter.next(), LineTooLongError);
  for (let count = 1; count <= 4; count++) assert.deepEqual(linesOf(splitter, Buffer.from('x')), []);
  assert.throws(() => linesOf(splitter, Buffer.from('x')), LineTooLongError);
});
