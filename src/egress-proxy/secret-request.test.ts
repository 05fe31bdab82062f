import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { coversHost } from '../protocol/egress-proxy-messages.ts';
import { FIELDS_MAX_BYTES, replacePlaceholders, TooLarge } from './secret-request.ts';

const [ONE, TWO] = ['1', '2'].map((digit) => `berth-secret-${digit.repeat(32)}`) as [string, string];
const SECRETS = [
  { placeholder: ONE, value: 'first' },
  { placeholder: TWO, value: 'ü$& $1' },
];
const replaced = (value: string) => replacePlaceholders(['X-Key', value], SECRETS).fields[1];
const base64 = (text: string) => Buffer.from(text, 'utf8').toString('base64');

test('every occurrence of a placeholder becomes its value, in UTF-8', () => {
  assert.equal(replaced(`a ${ONE},${ONE}; ${TWO}`), 'a first,first; \u00c3\u00bc$& $1');
  assert.equal(replaced(`x${ONE}x`), 'xfirstx');
  const unknown = `berth-secret-${'3'.repeat(32)} ${ONE.toUpperCase()} ${ONE.slice(0, -1)}`;
  assert.equal(replaced(unknown), unknown);
});

test('a placeholder within Basic is found, and other base64 is not touched', () => {
  assert.equal(replaced(`Basic ${base64(`user:${ONE}`)}`), `Basic ${base64('user:first')}`);
  assert.equal(replaced(`bAsIc  ${base64(`${TWO}:x`)}`), `bAsIc  ${base64('ü$& $1:x')}`);
  for (const kept of [
    `Basic ${base64('user:other')}`,
    `Bearer ${base64(ONE)}`,
    'Basic dXNlcg',
    'Basic',
    'Basic a b',
  ])
    assert.equal(replaced(kept), kept);
});

test('a value that is a placeholder itself is not replaced again', () => {
  const secrets = [
    { placeholder: ONE, value: TWO },
    { placeholder: TWO, value: 'second' },
  ];
  assert.deepEqual(replacePlaceholders(['A', ONE, 'B', TWO], secrets).fields, ['A', TWO, 'B', 'second']);
});

test('names of fields stay, and those that have a value are told', () => {
  const { fields, secret } = replacePlaceholders([ONE, 'x', 'Authorization', ONE], SECRETS);
  assert.deepEqual(fields, [ONE, 'x', 'Authorization', 'first']);
  assert.deepEqual([...secret], ['authorization']);
});

test('fields without a placeholder never change', () => {
  fc.assert(
    fc.property(fc.array(fc.string()), (texts) => {
      const fields = texts.flatMap((text) => ['Name', text]);
      assert.deepEqual(replacePlaceholders(fields, SECRETS).fields, fields);
    }),
  );
});

test('many placeholders of a large value do not fill the memory', () => {
  const large = [{ placeholder: ONE, value: 'x'.repeat(65_536) }];
  const times = (count: number) => replacePlaceholders(['A', ONE.repeat(count)], large);
  assert.equal(times(3).fields[1]?.length, 3 * 65_536);
  assert.throws(() => times(Math.ceil(FIELDS_MAX_BYTES / 65_536) + 1), TooLarge);
});

test('an exact host covers itself, and *.domain every name below it', () => {
  const cases: readonly (readonly [string, string, boolean])[] = [
    ['api.test', 'api.test', true],
    ['api.test', 'x.api.test', false],
    ['*.api.test', 'x.api.test', true],
    ['*.api.test', 'x.y.api.test', true],
    ['*.api.test', 'api.test', false],
    ['*.api.test', 'xapi.test', false],
  ];
  for (const [host, name, covered] of cases)
    assert.equal(coversHost([host], name), covered, `${host} ${name}`);
});
