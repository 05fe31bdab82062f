import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Denials } from './denials.ts';
import type { CountedDenial } from './egress-proxy-messages.ts';

test('a VM that scans addresses has few of them passed on, and hides no other’s', async () => {
  const { promise, resolve } = Promise.withResolvers<readonly CountedDenial[]>();
  const denials = new Denials(resolve);
  const add = (guest: string, number: number) =>
    denials.add({ guest, name: null, address: `203.0.113.${number % 256}`, port: number });
  for (let number = 1; number <= 5_000; number++) add('198.18.0.1', number);
  add('198.18.0.1', 1);
  add('198.18.0.2', 443);
  const passed = await promise;
  const of = (wanted: string) => passed.filter(({ guest }) => guest === wanted);
  assert.equal(of('198.18.0.1').length, 100);
  assert.equal(of('198.18.0.1')[0]?.count, 2, 'a known one is counted on');
  assert.equal(of('198.18.0.2').length, 1);
});
