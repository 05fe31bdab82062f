import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { AppError } from '../../shared/errors.ts';
import {
  checkUrl,
  KEPT_BYTES,
  KEPT_HEADER_BYTES,
  keptHeaders,
  MAX_RETRY_AFTER_SECONDS,
  printable,
  refusal,
  retryAfterSeconds,
} from './outbound.ts';

const REFUSED: Readonly<Record<string, readonly string[]>> = {
  loopback: ['127.0.0.1', '127.255.255.254', '::1'],
  unspecified: ['0.0.0.0', '0.1.2.3', '::'],
  private: ['10.0.0.1', '172.16.0.1', '172.31.255.255', '192.168.1.1', 'fc00::1', 'fd00:ec2::254', 'fec0::1'],
  'shared address space': ['100.64.0.1', '100.100.100.200', '100.127.255.255'],
  'link-local': ['169.254.0.1', 'fe80::1', 'fe80::1%lo', 'fe80::1%1', '2606:4700::1%eth0'],
  metadata: ['169.254.169.254', '168.63.129.16', '192.0.0.192', 'fd20:ce::254'],
  multicast: ['224.0.0.1', '239.255.255.255', 'ff02::1'],
  reserved: [
    ...[
      '240.0.0.1',
      '255.255.255.255',
      '192.0.2.1',
      '198.18.0.1',
      '198.51.100.1',
      '203.0.113.1',
      '192.88.99.1',
    ],
    ...[
      '2001:db8::1',
      '3fff::1',
      '100::1',
      '5f00::1',
      '2001:2::1',
      '2001:10::1',
      '2001:20::1',
      '4000::1',
      'e000::1',
    ],
  ],
  'IPv4-compatible': ['::127.0.0.1', '::8.8.8.8'],
  mapped: ['::ffff:127.0.0.1', '::ffff:8.8.8.8', '::ffff:7f00:1'],
  'IPv4-translated': ['::ffff:0:127.0.0.1'],
  NAT64: ['64:ff9b::7f00:1', '64:ff9b::8.8.8.8', '64:ff9b:1::a00:1', '64:ff9b:1:ffff::1'],
  '6to4': ['2002:7f00:1::', '2002:a00:1::1', '2002:808:808::1'],
  Teredo: ['2001::1', '2001:0:4136:e378:8000:63bf:3fff:fdd2'],
  ISATAP: ['2606:4700::5efe:127.0.0.1', '2606:4700::200:5efe:10.0.0.1'],
  'no address': ['', 'localhost', '1.2.3', '127.1', '0x7f.0.0.1'],
};

for (const [kind, addresses] of Object.entries(REFUSED)) {
  test(`${kind} is reached by neither protocol`, () => {
    for (const address of addresses) {
      assert.notEqual(refusal(address, 'https:', []), null, address);
      assert.notEqual(refusal(address, 'http:', []), null, address);
    }
  });
}

const PUBLIC = [
  '8.8.8.8',
  '93.184.216.34',
  '100.63.255.255',
  '172.32.0.1',
  '2606:4700::1111',
  '2a00:1450:4001::200e',
];

test('a public address is reached with TLS only', () => {
  for (const address of PUBLIC) {
    assert.equal(refusal(address, 'https:', []), null, address);
    assert.notEqual(refusal(address, 'http:', []), null, address);
  }
});

test('an allowed network is reached by both protocols, and nothing beside it is', () => {
  const allow = [
    { address: '10.1.0.0', prefix: 16 },
    { address: 'fd12::', prefix: 16 },
  ];
  for (const protocol of ['https:', 'http:'] as const) {
    for (const address of ['10.1.0.0', '10.1.255.255', 'fd12::1']) {
      assert.equal(refusal(address, protocol, allow), null, address);
    }
    for (const address of [
      '10.2.0.1',
      '10.0.255.255',
      'fd13::1',
      '::ffff:10.1.0.1',
      '64:ff9b::10.1.0.1',
      '127.0.0.1',
    ]) {
      assert.notEqual(refusal(address, protocol, allow), null, address);
    }
  }
  assert.equal(refusal('8.8.8.8', 'https:', allow), null);
});

const LOOPBACK = [{ address: '127.0.0.0', prefix: 8 }];

function refused(text: string, allow: Parameters<typeof checkUrl>[1] = []): void {
  assert.throws(
    () => checkUrl(text, allow),
    (error) =>
      error instanceof AppError && error.code === 'INVALID_REQUEST' && error.details?.[0]?.field === 'url',
    text,
  );
}

test('an https URL with a name or a public address is accepted', () => {
  for (const text of [
    ...[
      'https://example.org',
      'https://example.org:8443/hook?x=1',
      'https://8.8.8.8/',
      'https://[2606:4700::1]/',
    ],
    ...[
      'https://no-such-name.invalid/',
      'https://münchen.example/hook',
      `https://example.org/${'a'.repeat(2027)}`,
    ],
  ]) {
    assert.equal(checkUrl(text, []).protocol, 'https:', text);
  }
});

test('other URLs are refused', () => {
  for (const text of [
    ...[
      '',
      'example.org',
      '/hook',
      'http://example.org/',
      'ftp://example.org/',
      'file:///etc/passwd',
      'https://',
    ],
    ...[
      'https://u@example.org/',
      'https://u:p@example.org/',
      'https://:p@example.org/',
      'https://example.org/#f',
    ],
    ...[
      'https://example.org/#',
      'https://example.org:0/',
      'https://example.org:70000/',
      ' https://example.org/',
    ],
    ...[
      'https://exam\nple.org/',
      'https://example.org/\u0000',
      'https://exa mple.org/',
      'javascript:alert(1)',
    ],
    `https://example.org/${'a'.repeat(2030)}`,
    `https://example.org/${'ü'.repeat(500)}`,
  ]) {
    refused(text);
  }
});

/** The same machine, in every notation that the URL standard knows. */
const NOTATIONS = [
  ...['127.0.0.1', '127.1', '127.0.1', '2130706433', '0x7f000001', '0x7f.1', '017700000001', '0177.0.0.01'],
  ...[
    '127.0.0.1.',
    '%31%32%37.0.0.1',
    '１２７.０.０.１',
    '127。0。0。1',
    '0',
    '0x0',
    '[::1]',
    '[::]',
    '[0:0:0:0:0:0:0:1]',
  ],
  ...[
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[::127.0.0.1]',
    '[64:ff9b::7f00:1]',
    '[2002:7f00:1::]',
    '[2001::1]',
  ],
  ...[
    '169.254.169.254',
    '2852039166',
    '0xa9fea9fe',
    '0251.0376.0251.0376',
    '10.0.0.1',
    '167772161',
    '192.168.257',
  ],
  ...[
    '[fe80::1]',
    '[fe80::1%25eth0]',
    '[fe80::1%eth0]',
    '[fd00::1]',
    '100.64.0.1',
    '224.0.0.1',
    '168.63.129.16',
  ],
];

for (const host of NOTATIONS) {
  test(`https://${host}/ is refused`, () => refused(`https://${host}/`));
}

test('http is for allowed networks', () => {
  for (const text of [
    'http://127.0.0.1:9/',
    'http://2130706433/',
    'http://receiver.example/',
    'https://127.0.0.1/',
  ]) {
    checkUrl(text, LOOPBACK);
  }
  for (const text of [
    'http://10.0.0.1/',
    'http://8.8.8.8/',
    'http://[::1]/',
    'https://[::ffff:127.0.0.1]/',
  ]) {
    refused(text, LOOPBACK);
  }
});

test('any bytes become text that a database takes, of at most 4 KiB', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 3_000 }), { maxLength: 4 }), (chunks) => {
      const text = printable(chunks);
      assert.ok(Buffer.byteLength(text) <= KEPT_BYTES);
      assert.ok(text.isWellFormed());
      assert.doesNotMatch(text, /[^\P{Cc}\t\n]/u);
    }),
  );
});

test('readable text stays as it is, and is cut between characters', () => {
  assert.equal(printable([Buffer.from('grün\tja\r\nno')]), 'grün\tja\nno');
  assert.equal(printable([Buffer.from(`x${'ü'.repeat(3_000)}`)]), `x${'ü'.repeat(2_047)}`);
  assert.equal(printable([Buffer.from([0x61, 0, 0xff, 0x1b, 0x62])]), 'a\ufffd\ufffd\ufffdb');
});

test('any headers become text that a database takes, of at most 2 KiB', () => {
  const value = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 900 }),
    fc.array(fc.string(), { maxLength: 3 }),
  );
  fc.assert(
    fc.property(fc.dictionary(fc.string({ unit: 'grapheme-ascii' }), value), (headers) => {
      const kept = Object.entries(keptHeaders(headers));
      const bytes = kept.flat().reduce((sum, text) => sum + Buffer.byteLength(text), 0);
      assert.ok(bytes <= KEPT_HEADER_BYTES);
      for (const [, text] of kept) {
        assert.ok(text.isWellFormed());
        assert.doesNotMatch(text, /\p{Cc}/u);
      }
    }),
  );
});

test('headers are kept as they came, cookies are not', () => {
  const headers = { 'content-type': 'text/plain', 'set-cookie': ['session=1'], vary: ['a', 'b'] };
  assert.deepEqual(keptHeaders(headers), { 'content-type': 'text/plain', vary: 'a, b' });
});

test('Retry-After is seconds or a date, never negative, at most a week', () => {
  const now_ms = Date.parse('2026-01-01T00:00:00Z');
  const cases: readonly (readonly [string | string[] | undefined, number | null])[] = [
    ['0', 0],
    ['120', 120],
    [' 7 ', 7],
    [['3', '4'], 3],
    ['9999999999', MAX_RETRY_AFTER_SECONDS],
    ['Thu, 01 Jan 2026 00:01:30 GMT', 90],
    ['Wed, 31 Dec 2025 00:00:00 GMT', 0],
    ['Thu, 01 Jan 2099 00:00:00 GMT', MAX_RETRY_AFTER_SECONDS],
    [undefined, null],
    ['', null],
    ['-1', null],
    ['1.5', null],
    ['soon', null],
    ['soon GMT', null],
    ['2026-01-01', null],
    ['99999999999', null],
  ];
  for (const [header, seconds] of cases)
    assert.equal(retryAfterSeconds(header, now_ms), seconds, String(header));
});
