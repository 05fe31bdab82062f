import assert from 'node:assert/strict';
import { test } from 'node:test';
import { outgoingPorts } from './reachable.ts';

const LINUX = { first: 32_768, last: 60_999 };

test('SSH ports among those of outgoing connections are a weakness, others are none', () => {
  for (const [first, last, is_weak] of [
    [22_000, 22_999, false],
    [22_000, 32_767, false],
    [22_000, 32_768, true],
    [40_000, 40_999, true],
    [60_999, 62_000, true],
    [61_000, 62_000, false],
    [1_024, 65_535, true],
  ] as const)
    assert.equal(outgoingPorts({ first, last }, LINUX).length, is_weak ? 1 : 0, `${first}-${last}`);
  assert.match(
    outgoingPorts({ first: 22_000, last: 40_000 }, LINUX)[0]?.next ?? '',
    /BERTH_SSH_PORTS below 32768/,
  );
});

test('where the range is not known, nothing is said', () => {
  assert.deepEqual(outgoingPorts({ first: 1_024, last: 65_535 }, null), []);
});
