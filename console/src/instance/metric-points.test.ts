import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { MetricHistory, MetricSpread, MetricsSample } from '../../../client/src/berth.ts';
import { pointsOf, QUANTITIES } from './metric-points.ts';

const BEGIN_MS = Date.UTC(2026, 10, 25, 9);
const iso = (second: number) => new Date(BEGIN_MS + second * 1000).toISOString();
const quantity = (title: string) => QUANTITIES.find((each) => each.title === title) ?? assert.fail(title);
const spread = { mean: 0.5, min: 0.25, max: 1 };

function history(...seconds: number[]): MetricHistory {
  const none: MetricSpread | null = null;
  return {
    ...{ range: '1h', from: iso(0), to: iso(3600), step_seconds: 60 },
    samples: seconds.map((second) => ({
      at: iso(second),
      measured_minutes: 1,
      cpu_share: spread,
      memory: { used_bytes: none, host_bytes: none },
      disk: { read_bytes_per_second: none, written_bytes_per_second: none },
      network: { received_bytes_per_second: none, sent_bytes_per_second: spread },
      dirty_bytes: spread,
    })),
  };
}

function live(second: number, sent_bytes: number | null): MetricsSample {
  return {
    ...{ at: iso(second), cpu_seconds: 1, cpu_share: 0.1 },
    memory: { host_bytes: 1, used_bytes: null, total_bytes: null },
    disk: { read_bytes: 0, written_bytes: 0, read_operations: 0, write_operations: 0 },
    network: { received_bytes: sent_bytes, sent_bytes },
  };
}

const read = (title: string, ...given: [MetricHistory | undefined, MetricsSample[]]) =>
  pointsOf(quantity(title), ...given).map(({ at_ms, spread }) => [(at_ms - BEGIN_MS) / 1000, spread?.mean]);

test('the history stands in the middle of its periods, until the samples of the running VM begin', () => {
  assert.deepEqual(read('CPU', history(0, 60, 120), [live(100, null), live(115, null)]), [
    [30, 0.5],
    [90, 0.5],
    [100, 0.1],
    [115, 0.1],
  ]);
  assert.deepEqual(read('CPU', undefined, []), []);
});

test('what only the history has is shown from it alone', () => {
  assert.deepEqual(read('Unsaved', history(0, 60), [live(10, 1)]), [
    [30, 0.5],
    [90, 0.5],
  ]);
});

test('a counter of the running VM is a rate since its last known value, and none after a reset', () => {
  const samples = [live(0, 100), live(15, null), live(30, 400), live(45, 10), live(60, 25)];
  assert.deepEqual(read('Network sent', undefined, samples), [
    [0, undefined],
    [15, undefined],
    [30, 10],
    [45, undefined],
    [60, 1],
  ]);
});
