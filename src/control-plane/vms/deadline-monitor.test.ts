import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DeadlineMonitor, GRACE_MS } from './deadline-monitor.ts';

/** Checks every two seconds until `until_ms`; returns the last answer. */
function watched(monitor: DeadlineMonitor, from_ms: number, until_ms: number): boolean {
  for (let now_ms = from_ms; now_ms < until_ms; now_ms += 2_000) monitor.check(now_ms);
  return monitor.check(until_ms);
}

test('a monitor that has just started enforces no deadline for the grace period', () => {
  const monitor = new DeadlineMonitor();
  assert.equal(watched(monitor, 1e9, 1e9 + GRACE_MS - 1), false);
  assert.equal(watched(monitor, 1e9 + GRACE_MS, 1e9 + GRACE_MS + 60_000), true);
});

test('a gap, a clock that was set, or an unreachable database starts the grace period again', () => {
  const monitor = new DeadlineMonitor();
  assert.equal(watched(monitor, 1e9, 1e9 + GRACE_MS), true);
  assert.equal(monitor.check(2e9), false, 'the machine slept');
  assert.equal(watched(monitor, 2e9, 2e9 + GRACE_MS), true);
  assert.equal(monitor.check(1e9), false, 'the clock was set back');
  assert.equal(watched(monitor, 1e9, 1e9 + GRACE_MS), true);
  monitor.reset();
  assert.equal(monitor.check(1e9 + GRACE_MS + 1), false, 'the database was unreachable');
});
