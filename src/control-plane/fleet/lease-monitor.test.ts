import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { HostId } from '../../shared/ids.ts';
import { LeaseMonitor, type LeaseState, marginMs } from './lease-monitor.ts';

const LEASE_MS = 40_000;
const OVER_MS = LEASE_MS + marginMs(LEASE_MS);

function host(name: string, beat: number, change: Partial<LeaseState> = {}): LeaseState {
  return {
    id: `host_${name}` as HostId,
    name,
    beat,
    lease_ms: LEASE_MS,
    lost: false,
    ...change,
  };
}

/** Checks every second from `from_ms` until `until_ms`; returns the last answer. */
function watched(monitor: LeaseMonitor, hosts: readonly LeaseState[], from_ms: number, until_ms: number) {
  for (let now_ms = from_ms; now_ms < until_ms; now_ms += 1_000) monitor.expired(hosts, now_ms);
  return monitor.expired(hosts, until_ms).map(({ name }) => name);
}

test('a host expires when lease and margin have passed since its last renewal was seen, and not before', () => {
  const monitor = new LeaseMonitor();
  assert.deepEqual(watched(monitor, [host('a', 1)], 0, OVER_MS - 1), []);
  assert.deepEqual(watched(monitor, [host('a', 1)], OVER_MS - 1, OVER_MS), ['a']);
  assert.deepEqual(monitor.expired([host('a', 2)], OVER_MS + 1), [], 'it is back');
});

test('each renewal begins the lease anew', () => {
  const monitor = new LeaseMonitor();
  watched(monitor, [host('a', 1)], 0, OVER_MS - 1_000);
  assert.deepEqual(watched(monitor, [host('a', 2)], OVER_MS - 1_000, 2 * OVER_MS - 2_000), []);
});

test('a monitor that has just started, or was interrupted, gives every host its whole lease', () => {
  const monitor = new LeaseMonitor();
  assert.deepEqual(monitor.expired([host('a', 1)], 1e9), [], 'however long ago that beat was');
  watched(monitor, [host('a', 1)], 1e9, 1e9 + OVER_MS - 1_000);
  assert.deepEqual(monitor.expired([host('a', 1)], 2e9), [], 'after a gap');
  assert.deepEqual(watched(monitor, [host('a', 1)], 2e9, 2e9 + OVER_MS - 1), []);
  monitor.reset();
  assert.deepEqual(monitor.expired([host('a', 1)], 2e9 + OVER_MS), []);
});
