import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { AppError } from './errors.ts';
import { addressAllowed, canonicalCidr, canonicalCidrs } from './networks.ts';

test('every spelling of a network is kept in one form', () => {
  const forms: [string, string][] = [
    ['203.0.113.7', '203.0.113.7/32'],
    ['203.0.113.7/24', '203.0.113.0/24'],
    ['10.255.255.255/9', '10.128.0.0/9'],
    ['1.2.3.4/0', '0.0.0.0/0'],
    ['2001:DB8:0:0::1', '2001:db8::1/128'],
    ['2001:db8:ffff::/33', '2001:db8:8000::/33'],
    ['::ffff:10.1.2.3', '10.1.2.3/32'],
    ['::ffff:10.1.2.3/104', '10.0.0.0/8'],
    ['::/0', '::/0'],
  ];
  for (const [given, kept] of forms) assert.equal(canonicalCidr(given), kept, given);
});

test('a text that is no network is refused with its index in the list', () => {
  const bad = [
    '',
    '/8',
    '10.1',
    '010.0.0.1',
    '0x0a.0.0.1',
    '167772161',
    '10.0.0.0/33',
    '10.0.0.0/08',
    '10.0.0.0/+8',
    '10.0.0.0/',
    '10.0.0.0/8/8',
    '10.0.0.256',
    '::/129',
    'fe80::1%eth0',
    ':::',
    'example.org',
    ' 10.0.0.1',
    '10.0.0.1\n',
  ];
  for (const text of bad) assert.equal(canonicalCidr(text), null, JSON.stringify(text));
  assert.throws(
    () => canonicalCidrs(['10.0.0.0/8', 'nonsense']),
    (error) => error instanceof AppError && error.details?.[0]?.field === 'allowed_cidrs.1',
  );
});

test('duplicates are stored once, and at most fifty are accepted', () => {
  assert.deepEqual(canonicalCidrs(['10.0.0.1/8', '10.0.0.0/8']), ['10.0.0.0/8']);
  assert.throws(() => canonicalCidrs(Array.from({ length: 51 }, (_, i) => `10.0.0.${i}`)), {
    code: 'INVALID_REQUEST',
  });
});

test('an address matches networks of its family that contain it; without networks every address matches', () => {
  assert.ok(addressAllowed([], '198.51.100.1'));
  assert.ok(addressAllowed(['10.0.0.0/8', '2001:db8::/32'], '10.9.8.7'));
  assert.ok(addressAllowed(['10.0.0.0/8'], '::ffff:10.9.8.7'));
  assert.ok(addressAllowed(['10.0.0.0/8', '2001:db8::/32'], '2001:db8::1'));
  for (const address of ['11.0.0.1', '2001:db9::1', '::1', 'unknown', '']) {
    assert.equal(addressAllowed(['10.0.0.0/8', '2001:db8::/32'], address), false, address);
  }
});

test('property: the stored form of a network is its own stored form, and contains the given addresses', () => {
  const given = fc.oneof(
    fc.tuple(fc.ipV4(), fc.integer({ min: 0, max: 32 })),
    fc.tuple(fc.ipV6(), fc.integer({ min: 0, max: 128 })),
  );
  fc.assert(
    fc.property(given, ([address, prefix]) => {
      const kept = canonicalCidr(`${address}/${prefix}`);
      assert.ok(kept !== null);
      assert.equal(canonicalCidr(kept), kept);
      // A mapped address is IPv4 when it comes in; a network of IPv6 that merely spans the mapped ones does not hold it.
      if (!(/^::(ffff:)?\d/i.test(address) && kept.includes(':'))) assert.ok(addressAllowed([kept], address));
    }),
  );
});
