import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseJson } from './server.ts';

const parse = (text: string) => parseJson(Buffer.from(text));

test('a key that reaches the prototype is refused, however it is spelt and wherever it is', () => {
  const SPELT = [
    '__proto__',
    '\\u005f_proto__',
    '__pr\\u006Fto__',
    '\\u005F\\u005f\\u0070\\u0072\\u006f\\u0074\\u006f\\u005f\\u005f',
  ];
  for (const key of SPELT)
    for (const text of [`{"${key}":{}}`, `[{"a":{"${key}" \n: 1}}]`])
      assert.throws(() => parse(text), /forbidden key/, text);
});

test('the same text as a value, and other keys, are allowed', () => {
  for (const value of [
    '__proto__',
    { __PROTO__: 1 },
    { text: '"__proto__": 1' },
    ['\u0061', '\\u005f_proto__'],
    { ä: 'ö' },
  ])
    assert.deepEqual(parse(JSON.stringify(value)), value);
  assert.deepEqual(parse('["\\u0061"]'), ['a']);
});

test('bytes that are no UTF-8 are refused', () => {
  assert.throws(() => parseJson(Buffer.from([0x22, 0xff, 0x22])), /not UTF-8/);
});
