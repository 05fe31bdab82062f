import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { drawRandom, ID_PREFIXES, isId, newId } from './ids.ts';

const time_ms = fc.nat({ max: 2 ** 48 - 1 });

test('ids sort by the time of their making', () => {
  fc.assert(
    fc.property(time_ms, time_ms, (a, b) => {
      fc.pre(a !== b);
      assert.equal(newId('inst', a) < newId('inst', b), a < b);
    }),
  );
});

test('an id is its prefix and 26 characters, and is one of that prefix only', () => {
  fc.assert(
    fc.property(fc.constantFrom(...ID_PREFIXES), time_ms, (prefix, now_ms) => {
      const id = newId(prefix, now_ms);
      assert.match(id, /^[a-z]+_[0-9a-hjkmnp-tv-z]{26}$/);
      assert.deepEqual(
        ID_PREFIXES.filter((each) => isId(each, id)),
        [prefix],
      );
    }),
  );
});

test('the time of an id can be read back: its first 48 bits', () => {
  const alphabet = '0123456789abcdefghjkmnpqrstvwxyz';
  fc.assert(
    fc.property(time_ms, (now_ms) => {
      let bits = 0n;
      for (const each of newId('vm', now_ms).slice('vm_'.length)) {
        bits = (bits << 5n) | BigInt(alphabet.indexOf(each));
      }
      assert.equal(Number(bits >> 80n), now_ms);
    }),
  );
});

test('ids of one moment differ', () => {
  assert.equal(new Set(Array.from({ length: 1000 }, () => newId('evt', 0))).size, 1000);
});

test('text that is no id is refused', () => {
  const good = newId('inst');
  for (const bad of ['', 'inst', 'inst_', good.toUpperCase(), `${good}0`, good.slice(0, -1), ` ${good}`]) {
    assert.equal(isId('inst', bad), false, bad);
  }
  for (const letter of 'ilou\n') assert.equal(isId('inst', good.slice(0, -1) + letter), false);
});

test('bytes are given out once, over many draws of different sizes', () => {
  const seen = new Set<string>();
  for (let n = 0; n < 2_000; n++) {
    const bytes = drawRandom(n % 2 === 0 ? 12 : 16);
    assert.equal(bytes.length, n % 2 === 0 ? 12 : 16);
    seen.add(bytes.subarray(0, 12).toString('hex'));
  }
  assert.equal(seen.size, 2_000);
});
