import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { incompleteEnd, TextWindow } from './tool.ts';

test('a stream that fits is whole, however it is cut into pieces', () => {
  fc.assert(
    fc.property(fc.array(fc.string({ unit: 'binary', maxLength: 12 }), { maxLength: 8 }), (pieces) => {
      const text = pieces.join('').toWellFormed();
      const window = new TextWindow({ head_bytes: 16, tail_bytes: 4096 });
      for (const byte of Buffer.from(text)) window.push(Uint8Array.of(byte));
      assert.deepEqual(window.read(), { head: text, tail: '', cut: null });
    }),
  );
});

test('a longer stream keeps its beginning and end, without half a character, and says what is missing', () => {
  fc.assert(
    fc.property(
      fc.string({ unit: 'grapheme', minLength: 60, maxLength: 200 }),
      fc.integer({ min: 4, max: 20 }),
      fc.integer({ min: 4, max: 20 }),
      fc.integer({ min: 1, max: 7 }),
      (text, head_bytes, tail_bytes, size) => {
        const bytes = Buffer.from(text);
        const window = new TextWindow({ head_bytes, tail_bytes });
        for (let at = 0; at < bytes.length; at += size) window.push(bytes.subarray(at, at + size));
        const { head, tail, cut } = window.read();
        assert(cut);
        assert.equal(window.total, bytes.length);
        const missing = bytes.subarray(cut.at, cut.at + cut.bytes).toString('utf8');
        assert.equal(head + missing + tail, text);
        assert(Buffer.byteLength(head) <= head_bytes && Buffer.byteLength(head) > head_bytes - 4);
        assert(Buffer.byteLength(tail) <= tail_bytes && Buffer.byteLength(tail) > tail_bytes - 4);
      },
    ),
  );
});

test('bytes that are no UTF-8 are cut where the bound is', () => {
  assert.equal(incompleteEnd(Buffer.from([0xff, 0x80, 0x80, 0x80, 0x80])), 0);
  assert.equal(incompleteEnd(Buffer.from('aé')), 0);
  assert.equal(incompleteEnd(Buffer.from('aé').subarray(0, 2)), 1);
  assert.equal(incompleteEnd(Buffer.from('€').subarray(0, 2)), 2);
});
