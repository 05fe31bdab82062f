import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hostChains } from './tap-rules.ts';

const about = { link: 'berth-0123abcd', resolvers: ['192.0.2.53'] };

test('a host that did not forward before forwards from its uplinks to guests only', () => {
  const rule = 'iifname { "eth0", "eth1" } oifname != "berth-*" drop';
  const chains = hostChains({ ...about, uplinks: ['eth0', 'eth1'] }).join('\n');
  assert.ok(chains.includes(rule));
  // A host that forwarded before keeps what it forwards.
  assert.ok(
    !hostChains({ ...about, uplinks: [] })
      .join('\n')
      .includes('oifname != "berth-*" drop'),
  );
});

test('only the host itself opens connections to guests, and guests reach only its resolvers', () => {
  const lines = hostChains({ ...about, uplinks: [] }).map((line) => line.trim());
  assert.ok(lines.includes('oifname "berth-0123abcd" ct state != { established, related } drop'));
  const from_guests = lines.slice(lines.indexOf('chain from_guests {') + 1);
  assert.deepEqual(from_guests.slice(0, from_guests.indexOf('}')), [
    'ct state established,related accept',
    'ip daddr { 192.0.2.53 } udp dport 53 accept',
    'ip daddr { 192.0.2.53 } tcp dport 53 accept',
    'goto refuse',
  ]);
});
