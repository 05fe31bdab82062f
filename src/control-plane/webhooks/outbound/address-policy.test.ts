import assert from 'node:assert/strict';
import { test } from 'node:test';
import { refusal } from './check-url.ts';

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
