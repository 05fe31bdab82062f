import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { LineSplitter, LineTooLongError } from './line-splitter.ts';

test('however a stream is cut into chunks, the same lines come out', () => {
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
        out.push(...splitter.push(stream.subarray(offset, offset + cut)));
        offset += cut;
      }
      out.push(...splitter.push(stream.subarray(offset)));
      assert.deepEqual(
        out.map((each) => each.toString('hex')),
        lines.map((each) => each.toString('hex')),
      );
    }),
  );
});

test('a line over the bound is refused, finished or not, and one at the bound is not', () => {
  assert.equal(new LineSplitter(4).push(Buffer.from('1234\n')).length, 1);
  assert.throws(() => new LineSplitter(4).push(Buffer.from('12345\n')), LineTooLongError);
  const splitter = new LineSplitter(4);
  splitter.push(Buffer.from('123'));
  assert.throws(() => splitter.push(Buffer.from('45')), LineTooLongError);
});
