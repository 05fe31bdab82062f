import assert from 'node:assert/strict';
import { test } from 'node:test';
import { GUEST, guestAddress } from './addresses.ts';
import { sumWord, tapRules } from './tap-rules.ts';

/** RFC 1071, of 16-bit words. */
function checksum(words: readonly number[]): number {
  let sum = words.reduce((total, word) => total + word, 0);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}

function wordsOf(address: string): number[] {
  const [a = 0, b = 0, c = 0, d = 0] = address.split('.').map(Number);
  return [(a << 8) + b, (c << 8) + d];
}

test('an ICMP error keeps its checksum when the address in it becomes the guest’s', () => {
  for (let port = 1; port <= 65_535; port++) {
    const address = guestAddress(port);
    const before = checksum([0x0303, 0, ...wordsOf(address), 0x4500]);
    const after = checksum([0x0303, sumWord(address, GUEST), ...wordsOf(GUEST), 0x4500]);
    assert.equal(after, before, address);
  }
});

test('every slot gives another address, and what is no slot is refused', () => {
  const addresses = [1, 22_000, 65_535].map(guestAddress);
  assert.deepEqual(addresses, ['198.18.0.1', '198.18.85.240', '198.18.255.255']);
  for (const port of [0, -1, 1.5, 65_536]) assert.throws(() => guestAddress(port), /slot/);
});

test('a MAC address cannot add a rule', () => {
  assert.throws(() => tapRules({ slot: 22_000, mac: '52:54:00:00:00:00 accept' }), /MAC/);
});
