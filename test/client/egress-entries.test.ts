/** What offers to allow a denied destination agrees with what the host then allows. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { entryFor, isListed } from '../../client/src/egress-entries.ts';
import { activeEntries, allowsAddress, allowsName, checkedEntries } from '../../src/shared/egress-policy.ts';

const NAMES = ['example.com', 'www.example.com', 'notexample.com'];
const ADDRESSES = ['203.0.113.7', '2001:4860::7'];
const PORTS = [undefined, 80, 443, 8443];

test('the entry for a destination is a valid one that allows it, and is then listed', () => {
  for (const port of PORTS) {
    for (const name of NAMES) {
      const entry = entryFor({ name, port });
      assert.deepEqual(checkedEntries([entry]), [entry]);
      assert.ok(allowsName(activeEntries({ mode: 'allow', allow: [entry] }), name, port ?? null), entry);
      assert.ok(isListed([entry], { name, port }), entry);
    }
    for (const address of ADDRESSES) {
      const entry = entryFor({ address, port });
      assert.deepEqual(checkedEntries([entry]), [entry]);
      assert.ok(allowsAddress(activeEntries({ mode: 'allow', allow: [entry] }), address, port ?? 53), entry);
      assert.ok(isListed([entry], { address, port }), entry);
    }
  }
});

test('a name is listed exactly where the list allows it', () => {
  for (const entry of [
    'example.com',
    '*.example.com',
    'example.com:8443',
    '*.example.com:443',
    '203.0.113.7',
  ])
    for (const name of NAMES)
      for (const port of PORTS) {
        const allowed = allowsName(activeEntries({ mode: 'allow', allow: [entry] }), name, port ?? null);
        assert.equal(isListed([entry], { name, port }), allowed, `${entry}, ${name}, ${port}`);
      }
});

test('an address is listed exactly where the list allows it', () => {
  for (const entry of [
    ...[
      '203.0.113.7',
      '203.0.113.7:80',
      '203.0.113.70',
      '203.0.113.0/24',
      '203.0.113.0/29:443',
      '203.0.113.8/29',
    ],
    ...['203.0.112.0/23', '2001:4860::7', '[2001:4860::7]:443', '2001:4860::/64', '[2001:4860::]:80'],
    ...[
      '[2001:4860::/125]:443',
      '2001:4860::8/125',
      '2001:4860:8000::/33',
      'example.com',
      '*.example.com:443',
    ],
  ]) {
    const [kept = ''] = checkedEntries([entry]);
    for (const address of [...ADDRESSES, '203.0.113.128', '2001:4860:0:1::7', '2001:4860:ffff::'])
      for (const port of [80, 443, 8443]) {
        const allowed = allowsAddress(activeEntries({ mode: 'allow', allow: [kept] }), address, port);
        assert.equal(isListed([kept], { address, port }), allowed, `${kept}, ${address}, ${port}`);
      }
  }
});

test('without a port, an address is listed where the list allows every port', () => {
  const denied = { address: '203.0.113.7', port: undefined };
  assert.ok(isListed(['203.0.113.0/24'], denied));
  assert.ok(!isListed(['203.0.113.0/24:443', '203.0.113.7:80'], denied));
});
