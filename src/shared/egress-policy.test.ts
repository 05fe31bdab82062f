import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  activeEntries,
  allowsAddress,
  allowsName,
  canonicalName,
  checkedEntries,
  entryText,
  parseEntry,
} from './egress-policy.ts';
import { AppError } from './errors.ts';
import { CLOSED_IPV4, CLOSED_IPV6, closedBy } from './networks.ts';

function kept(text: string): string {
  const entry = parseEntry(text);
  assert.ok(typeof entry !== 'string', `${text} ${String(entry)}`);
  return entryText(entry);
}

test('every spelling of an entry is kept in one form', () => {
  const forms: [string, string][] = [
    ['example.com', 'example.com'],
    ['EXAMPLE.Com.', 'example.com'],
    ['*.Example.com:8443', '*.example.com:8443'],
    ['bücher.example', 'xn--bcher-kva.example'],
    ['*.BÜCHER.example', '*.xn--bcher-kva.example'],
    ['a_b.example.com', 'a_b.example.com'],
    ['203.0.113.7', '203.0.113.7'],
    ['203.0.113.7/32', '203.0.113.7'],
    ['203.0.113.7:443', '203.0.113.7:443'],
    ['203.0.113.9/24', '203.0.113.0/24'],
    ['203.0.113.9/24:53', '203.0.113.0/24:53'],
    ['2001:DB8:0::1', '2001:db8::1'],
    ['[2001:db8::1]', '2001:db8::1'],
    ['[2001:db8::1]:443', '[2001:db8::1]:443'],
    ['[2001:db8::7/32]:443', '[2001:db8::/32]:443'],
    ['2001:db8::/32', '2001:db8::/32'],
    ['::ffff:203.0.113.7', '203.0.113.7'],
  ];
  for (const [given, form] of forms) assert.equal(kept(given), form, given);
});

test('what is no entry is refused with a reason, and never understood as something else', () => {
  const bad = [
    ...[
      '',
      '*',
      '*.',
      '.',
      '..',
      'a..b',
      '-a.com',
      'a-.com',
      'exa mple.com',
      'a.com\n',
      'a%62.com',
      'a\u0000.com',
    ],
    ...[
      '*example.com',
      'a.*.com',
      '**.com',
      '*.*.com',
      'example.com:',
      'example.com:0',
      'example.com:65536',
      'example.com:+1',
    ],
    ...[
      'example.com:080',
      'example.com:80:80',
      'http://example.com',
      'example.com/path',
      'bücher.example.com?x',
      'bücher.example.com#x',
      'bücher.example.com\\x',
      'user@example.com',
      '[example.com]',
    ],
    ...[
      '127.1',
      '0x7f.1',
      '1.2.3',
      '010.0.0.1',
      '2130706433',
      '1.2.3.4.',
      '203.0.113.0/33',
      '203.0.113.0/024',
      '[203.0.113.7]:80',
    ],
    ...[
      'fe80::1%eth0',
      ':::',
      '[2001:db8::1',
      '2001:db8::1]',
      '[2001:db8::1]:',
      `${'a'.repeat(64)}.com`,
      `${'a.'.repeat(127)}com`,
    ],
    ...['localhost', 'a.localhost', 'router.local', 'com', '*.com.localhost', '1.0.0.10.in-addr.arpa'],
  ];
  for (const text of bad) assert.equal(typeof parseEntry(text), 'string', JSON.stringify(text));
});

test('private and special networks are refused, in every notation and inside of wider networks', () => {
  const closed = [
    ...[...CLOSED_IPV4, ...CLOSED_IPV6],
    ...[
      '10.1.2.3',
      '127.0.0.1',
      '169.254.169.254:80',
      '192.168.0.1/30',
      '100.64.0.1',
      '168.63.129.16',
      '0.0.0.0/0',
      '8.0.0.0/6',
    ],
    ...[
      '::1',
      '::ffff:10.0.0.1',
      '::ffff:7f00:1',
      '64:ff9b::a00:1',
      '2002:a00:1::1',
      'fd00::1',
      'fe80::1',
      '::/0',
      '2000::/3',
    ],
  ];
  for (const text of closed)
    assert.match(String(parseEntry(text)), /private or special|allows everything/, text);
});

test('a refusal names the entry and its place, and an allowed list has at most 100 different entries', () => {
  assert.throws(
    () => checkedEntries(['example.com', '10.0.0.1']),
    (error) =>
      error instanceof AppError &&
      error.code === 'INVALID_REQUEST' &&
      error.message.includes('"10.0.0.1"') &&
      error.details?.[0]?.field === 'egress.allow.1',
  );
  const many = Array.from({ length: 100 }, (_, i) => `h${i}.example.com`);
  assert.equal(checkedEntries([...many, 'H1.example.com']).length, 100);
  assert.throws(() => checkedEntries([...many, 'one-more.example.com']));
});

const label = fc.stringMatching(/^[a-z][a-z0-9_]{0,10}$/);
const name = fc
  .array(label, { minLength: 2, maxLength: 4 })
  .map((labels) => labels.join('.'))
  .filter((n) => !/(localhost|local|localdomain|arpa)$/.test(n));
const port = fc.option(fc.integer({ min: 1, max: 65_535 }));

test('the stored form of any entry is kept as it is', () => {
  fc.assert(
    fc.property(
      fc.oneof(fc.string(), name, fc.ipV4(), fc.ipV6()),
      fc.integer({ min: 0, max: 140 }),
      port,
      (host, prefix, to) => {
        for (const text of [
          host,
          `*.${host}`,
          `${host}/${prefix}`,
          `${host}:${to}`,
          `[${host}]:${to}`,
          `[${host}/${prefix}]:${to}`,
        ]) {
          const entry = parseEntry(text);
          if (typeof entry === 'string') continue;
          assert.equal(kept(entryText(entry)), entryText(entry));
          assert.deepEqual(parseEntry(entryText(entry)), entry);
        }
      },
    ),
  );
});

test('no entry whatsoever allows a closed address', () => {
  const isClosed = closedBy([]);
  fc.assert(
    fc.property(
      fc.oneof(fc.ipV4(), fc.ipV6()),
      fc.integer({ min: 0, max: 128 }),
      fc.oneof(fc.ipV4(), fc.ipV6()),
      (base, prefix, address) => {
        const entry = parseEntry(`${base}/${prefix}`);
        if (typeof entry === 'string') return;
        if (allowsAddress([entry], address, 80))
          assert.ok(!isClosed(address), `${base}/${prefix} ${address}`);
      },
    ),
  );
});

test('a name matches exactly, and *.name matches what is below it and not itself', () => {
  const entries = activeEntries({
    mode: 'allow',
    allow: ['example.com', '*.example.org', 'db.example.com:5432'],
  });
  assert.ok(allowsName(entries, 'example.com', 443));
  assert.ok(allowsName(entries, 'example.com', 80));
  assert.ok(!allowsName(entries, 'example.com', 22));
  assert.ok(!allowsName(entries, 'www.example.com', 443));
  assert.ok(!allowsName(entries, 'notexample.com', 443));
  assert.ok(allowsName(entries, 'a.b.example.org', 443));
  assert.ok(!allowsName(entries, 'example.org', 443));
  assert.ok(!allowsName(entries, 'evilexample.org', 443));
  assert.ok(allowsName(entries, 'db.example.com', 5432));
  assert.ok(!allowsName(entries, 'db.example.com', 443));
  assert.ok(allowsName(entries, 'db.example.com', null), 'it may be looked up');
  fc.assert(
    fc.property(name, name, (allowed, other) => {
      const exact = activeEntries({ mode: 'allow', allow: [allowed] });
      assert.equal(allowsName(exact, other, 443), other === allowed);
      const below = activeEntries({ mode: 'allow', allow: [`*.${allowed}`] });
      assert.ok(allowsName(below, `${other}.${allowed}`, 443));
      assert.ok(!allowsName(below, `${other}${allowed}`, 443));
    }),
  );
});

test('entries apply in mode allow only', () => {
  for (const mode of ['open', 'deny'] as const) {
    assert.deepEqual(activeEntries({ mode, allow: ['example.com', '203.0.113.0/24'] }), []);
  }
});

test('an address is allowed by its network and port, also in its mapped form', () => {
  const entries = activeEntries({
    mode: 'allow',
    allow: ['203.0.113.0/24:25', '198.51.100.7', '2001:db8::/32'],
  });
  assert.ok(allowsAddress(entries, '203.0.113.200', 25));
  assert.ok(!allowsAddress(entries, '203.0.113.200', 26));
  assert.ok(!allowsAddress(entries, '203.0.114.1', 25));
  assert.ok(allowsAddress(entries, '198.51.100.7', 9));
  assert.ok(allowsAddress(entries, '::ffff:198.51.100.7', 9));
  assert.ok(allowsAddress(entries, '2001:db8:1::1', 9));
  assert.ok(!allowsAddress(entries, 'example.com', 9));
});

test('a host name has one form; what programs read as an address is none', () => {
  assert.equal(canonicalName('WWW.Example.COM.'), 'www.example.com');
  for (const text of [
    '1.2.3.4',
    '0x7f000001',
    'a.1',
    'a.0x1',
    '',
    '.',
    'a b',
    'a..b',
    '[::1]',
    'a:80',
    'a%2eb',
  ]) {
    assert.equal(canonicalName(text), null, text);
  }
});
