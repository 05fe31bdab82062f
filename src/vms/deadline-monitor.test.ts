import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DeadlineMonitor, GRACE_MS } from './deadline-monitor.ts';

/** Looks every two seconds until `until_ms`; what the last look said. */
function watched(watch: DeadlineMonitor, from_ms: number, until_ms: number): boolean {
  for (let now_ms = from_ms; now_ms < until_ms; now_ms += 2_000) watch.look(now_ms);
  return watch.look(until_ms);
}

test('who has just begun to watch hears the hosts first', () => {
  const watch = new DeadlineMonitor();
  assert.equal(watched(watch, 1e9, 1e9 + GRACE_MS - 1), false);
  assert.equal(watched(watch, 1e9 + GRACE_MS, 1e9 + GRACE_MS + 60_000), true);
});

test('so does who was away, whatever the clock says of it', () => {
  const watch = new DeadlineMonitor();
  assert.equal(watched(watch, 1e9, 1e9 + GRACE_MS), true);
  assert.equal(watch.look(2e9), false, 'it slept');
  assert.equal(watched(watch, 2e9, 2e9 + GRACE_MS), true);
  assert.equal(watch.look(1e9), false, 'the clock was set back');
  assert.equal(watched(watch, 1e9, 1e9 + GRACE_MS), true);
  watch.forget();
  assert.equal(watch.look(1e9 + GRACE_MS + 1), false, 'the database was away');
});
