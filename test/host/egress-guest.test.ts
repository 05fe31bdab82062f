import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ProxiedGuest } from '../../src/egress-proxy/proxied-guest.ts';
import type { GuestPolicy } from '../../src/protocol/egress-proxy-messages.ts';
import { until } from '../support/waiting.ts';

test('the addresses of a listed name are looked up again each hour, and admitted', async () => {
  let now_ms = 0;
  let address = '203.0.113.1';
  const admitted: string[] = [];
  const policy: GuestPolicy = {
    address: '10.87.0.1',
    policy: { mode: 'allow', allow: ['api.example.org:443'] },
    secrets: [],
    authority: null,
  };
  const guest = new ProxiedGuest(policy, {
    resolver: {
      lookUp: async () => ({ outcome: 'found', addresses: [address], closed: [], ttl_seconds: 60 }),
      isClosed: () => false,
    },
    denials: { add: () => undefined },
    admit: async (addresses) => void admitted.push(...addresses),
    now_ms: () => now_ms,
  });
  await until('it is admitted', () => admitted.length === 1);
  address = '203.0.113.2';
  guest.change(policy);
  now_ms = 3_600_000;
  await until('the new one is admitted', () => {
    guest.change(policy);
    return admitted.length > 1;
  });
  assert.deepEqual(admitted, ['203.0.113.1', '203.0.113.2']);
});
