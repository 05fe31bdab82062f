import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { canonicalJson } from './canonical-json.ts';

/** The MACs of existing audit entries depend on this form, so it must never change. */
function asEver(value: unknown): string {
  return JSON.stringify(value, (_key, inner: unknown) => {
    if (typeof inner !== 'object' || inner === null || Array.isArray(inner)) return inner;
    return Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)));
  });
}

test('the text of a value never changes', () => {
  const odd = {
    b: [{ z: 1, a: undefined }, undefined, new Date(0)],
    10: 1,
    9: 2,
    ä: null,
    a: { toJSON: () => ({ d: 1, c: 2 }) },
  };
  assert.equal(canonicalJson(odd), asEver(odd));
  assert.equal(canonicalJson(JSON.parse('{"__proto__":{"b":1,"a":2}}')), '{"__proto__":{"a":2,"b":1}}');
  fc.assert(
    fc.property(fc.object({ withDate: true, withNullPrototype: true }), (value) => {
      assert.equal(canonicalJson(value), asEver(value));
    }),
  );
});

test('equal values have equal texts, whatever their order', () => {
  assert.equal(canonicalJson({ a: 1, b: { c: 2, d: 3 } }), canonicalJson({ b: { d: 3, c: 2 }, a: 1 }));
});
