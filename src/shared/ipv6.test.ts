import assert from 'node:assert/strict';
import { test } from 'node:test';
import { firstGroups } from './networks.ts';

test('an address has the same first groups however it is written', () => {
  for (const address of ['2001:db8::1', '2001:0DB8:0:0::1', '2001:db8:0:0:0:0:0:1']) {
    assert.equal(firstGroups(address, 4), '2001:db8:0:0', address);
  }
  assert.equal(firstGroups('::1', 3), '0:0:0');
  assert.equal(firstGroups('fe80:1:2:3:4::', 4), 'fe80:1:2:3');
});
