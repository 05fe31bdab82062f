/**
 * The API of a VM's metrics, and the history of what an instance used: reported by the minute, kept 30 days across boots. test/guest
 * has the measurement.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { downsampleMetrics } from '../../src/control-plane/vms/metric-history.ts';
import { type VmMetrics, withShares } from '../../src/control-plane/vms/metric-routes.ts';
import { insertSamples } from '../../src/control-plane/vms/metric-store.ts';
import type { VmSample } from '../../src/protocol/host-calls.ts';
import type { Spread, Spreads, UsedMinute } from '../../src/protocol/host-types.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { spreadsOf } from '../support/spreads.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const { db, agent } = api;
const owner = await api.person();
const client = api.as(owner);

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
const hour_ms = Math.floor(Date.now() / HOUR_MS) * HOUR_MS;
const minute_ms = Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS;

interface History {
  readonly range: string;
  readonly from: string;
  readonly to: string;
  readonly step_seconds: number;
  readonly samples: readonly {
    readonly at: string;
    readonly measured_minutes: number;
    readonly cpu_share: Spread | null;
    readonly memory: { readonly used_bytes: Spread | null };
    readonly network: { readonly sent_bytes_per_second: Spread | null };
    readonly dirty_bytes: Spread | null;
  }[];
}

const read = async (id: string, range = '1h') => {
  const answer = await client.get<History>(`/v1/instances/${id}/metrics?range=${range}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
};
const only = (values: Partial<Spreads>): Spreads => ({
  ...spreadsOf(null),
  ...values,
});
const same = (value: number): Spread => ({ mean: value, min: value, max: value });
const minute = (instance_id: InstanceId, at_ms: number, values: Partial<Spreads>): UsedMinute => ({
  instance_id,
  at: new Date(at_ms).toISOString(),
  spreads: only(values),
});
const report = (...minutes: UsedMinute[]) =>
  agent.client.reportMinutes({ minutes }, AbortSignal.timeout(10_000));
const stored = (id: InstanceId) =>
  db.selectFrom('metric_samples').selectAll().where('instance_id', '=', id).orderBy('at').execute();

describe('a reported minute', () => {
  test('is in the history, with its CPU as the share of all CPUs', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await db.updateTable('instances').set({ cpus: 2 }).where('id', '=', id).execute();
    const at_ms = minute_ms - 5 * MINUTE_MS;
    const cpu = { mean: 1, min: 0.5, max: 3 };
    assert.deepEqual(
      await report(
        minute(id, at_ms + 7, { cpu, memory_used: same(64), network_sent: same(5), dirty: same(9) }),
      ),
      { outcome: 'accepted' },
    );
    const { range, step_seconds, samples } = await read(id);
    assert.deepEqual([range, step_seconds, samples.length], ['1h', 60, 1]);
    const [found] = samples;
    assert.equal(found?.at, new Date(at_ms).toISOString());
    assert.equal(found?.measured_minutes, 1);
    assert.deepEqual(found?.cpu_share, { mean: 0.5, min: 0.25, max: 1 });
    assert.deepEqual(found?.memory.used_bytes, same(64));
    assert.deepEqual(found?.network.sent_bytes_per_second, same(5));
    assert.deepEqual(found?.dirty_bytes, same(9));
  });
  test('that is reported twice counts once', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    for (const value of [1, 2]) await report(minute(id, minute_ms, { memory_used: same(value) }));
    const { samples } = await read(id);
    assert.deepEqual(
      samples.map(({ memory }) => memory.used_bytes),
      [same(1)],
    );
  });
  test('of hours ago or of the future is dropped', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const far = [minute_ms - 3 * HOUR_MS, minute_ms + HOUR_MS];
    await report(...far.map((at_ms) => minute(id, at_ms, { memory_used: same(1) })));
    assert.deepEqual(await stored(id), []);
  });
});

describe('the history', () => {
  test('remains while the VM is stopped, and goes on with the next boot', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await report(minute(id, minute_ms - 20 * MINUTE_MS, { memory_used: same(1) }));
    assert.equal((await client.delete(`/v1/instances/${id}/vm`)).status, 202);
    await agent.stopped(id);
    // The last minute of a boot is reported after its end.
    await report(minute(id, minute_ms - 19 * MINUTE_MS, { memory_used: same(2) }));
    assert.equal((await read(id)).samples.length, 2);
    assertError(await client.get(`/v1/instances/${id}/vm/metrics`), 'VM_NOT_RUNNING');
    assert.equal((await client.post(`/v1/instances/${id}/vm`)).status, 202);
    await agent.assigned(id);
    await agent.ready(id);
    await report(minute(id, minute_ms - 3 * MINUTE_MS, { memory_used: same(3) }));
    const { samples } = await read(id);
    assert.deepEqual(
      samples.map(({ at, memory }) => [(minute_ms - Date.parse(at)) / MINUTE_MS, memory.used_bytes?.mean]),
      [
        [20, 1],
        [19, 2],
        [3, 3],
      ],
    );
  });
  test('of an instance that never ran is empty', async () => {
    const { id } = await api.instance(owner);
    assert.deepEqual((await read(id, '30d')).samples, []);
  });
  for (const [range, step_seconds, most] of [
    ['1h', 60, 60],
    ['6h', 60, 360],
    ['24h', 300, 288],
    ['7d', 3600, 168],
    ['30d', 10_800, 240],
  ] as const) {
    test(`over ${range} has a sample for each ${step_seconds} s that a VM ran, at most ${most + 1}`, async () => {
      const { id } = await api.instance(owner);
      const hours = Array.from({ length: 30 * 24 - 25 }, (_, nth) => hour_ms - (26 + nth) * HOUR_MS);
      const minutes = Array.from({ length: 25 * 60 }, (_, nth) => minute_ms - nth * MINUTE_MS);
      const filled = (count: number) => (at_ms: number) => ({
        ...{ instance_id: id, at_ms, minutes: count },
        spreads: only({ cpu: { mean: 0.5, min: 0, max: 1 } }),
      });
      await insertSamples(db, 3600, hours.map(filled(60)));
      await insertSamples(db, 60, minutes.map(filled(1)));
      const history = await read(id, range);
      assert.equal(history.step_seconds, step_seconds);
      assert.ok(Math.abs(history.samples.length - most) <= 1, `${history.samples.length}`);
      const [first] = history.samples;
      assert.ok(Date.parse(first?.at ?? '') >= Date.parse(history.from));
      for (const { at, cpu_share } of history.samples) {
        assert.equal(Date.parse(at) % (step_seconds * 1000), 0);
        assert.deepEqual(cpu_share, { mean: 0.5, min: 0, max: 1 });
      }
    });
  }
});

describe('downsampling', () => {
  test('replaces the minutes by hours after a day, keeps what was measured, and repeats without effect', async () => {
    const { id } = await api.instance(owner);
    const old_ms = hour_ms - 26 * HOUR_MS;
    const at = (at_ms: number, value: number) => ({
      ...{ instance_id: id, at_ms, minutes: 1 },
      spreads: only({ cpu: same(value) }),
    });
    await insertSamples(db, 60, [at(old_ms, 0), at(old_ms + 59 * MINUTE_MS, 1), at(minute_ms, 0.25)]);
    for (let again = 0; again < 2; again++) {
      await downsampleMetrics(db);
      const rows = await stored(id);
      assert.deepEqual(
        rows.map((row) => [
          row.at.getTime(),
          row.seconds,
          row.minutes,
          row.means[0],
          row.mins[0],
          row.maxs[0],
        ]),
        [
          [old_ms, 3600, 2, 0.5, 0, 1],
          [minute_ms, 60, 1, 0.25, 0.25, 0.25],
        ],
      );
    }
  });
  test('deletes what is older than 30 days', async () => {
    const { id } = await api.instance(owner);
    const hour = (at_ms: number) => ({ instance_id: id, at_ms, minutes: 60, spreads: only({}) });
    await insertSamples(db, 3600, [hour(hour_ms - 31 * DAY_MS), hour(hour_ms - 29 * DAY_MS)]);
    await downsampleMetrics(db);
    assert.deepEqual(
      (await stored(id)).map((row) => row.at.getTime()),
      [hour_ms - 29 * DAY_MS],
    );
  });
});

describe('400', () => {
  test('a range that is not one', async () => {
    const { id } = await api.instance(owner);
    for (const range of ['2h', '', '1H', '31d'])
      assertError(await client.get(`/v1/instances/${id}/metrics?range=${range}`), 'INVALID_REQUEST');
  });
});

const running = await instanceIn(api, owner, 'running');
const path = (id: string) => `/v1/instances/${id}/vm/metrics`;

function sample(second: number, cpu_seconds: number): VmSample {
  return {
    at: new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString(),
    cpu_seconds,
    memory: { host_bytes: 400_000_000, used_bytes: 60_000_000, total_bytes: null },
    disk: { read_bytes: 1, written_bytes: 2, read_operations: 3, write_operations: 4 },
    network: { received_bytes: null, sent_bytes: 5 },
  };
}

describe('200', () => {
  test('the current values and the samples of the last hour, each with its share of the cpus', async () => {
    const asked = client.get<VmMetrics>(path(running.id));
    const { id, call } = await api.agent.nextCall('metrics');
    const { vm_id } = await api.agent.known(running.id);
    assert.deepEqual(call, { kind: 'metrics', instance_id: running.id, vm_id });
    const samples = [sample(0, 10), sample(15, 13)];
    const result = { now: sample(25, 14), interval_seconds: 15, samples };
    await api.agent.client.answerCall({ id, answer: { result } });
    const { status, body, text } = await asked;
    assert.equal(status, 200, text);
    assert.deepEqual(body, {
      now: { ...sample(25, 14), cpu_share: 0.1 },
      interval_seconds: 15,
      samples: [
        { ...sample(0, 10), cpu_share: null },
        { ...sample(15, 13), cpu_share: 0.2 },
      ],
    });
  });
  test('a share is of all cpus and stays within 0 and 1', () => {
    const shares = withShares(
      [sample(0, 0), sample(10, 10), sample(20, 50), sample(30, 0), sample(30, 9)],
      2,
    );
    assert.deepEqual(
      shares.map(({ cpu_share }) => cpu_share),
      [null, 0.5, 1, 0, null],
    );
  });
});

describe('404', () => {
  test("another organisation's VM, like an unknown one", async () => {
    const stranger = api.as(await api.person());
    const theirs = await stranger.get(path(running.id));
    assertError(theirs, 'NOT_FOUND');
    assert.deepEqual(withoutRequestId(await stranger.get(path(newId('inst')))), withoutRequestId(theirs));
  });
});

describe('409', () => {
  for (const state of ['stopped', 'suspended', 'failed'] as const) {
    test(`a VM that is ${state} uses nothing`, async () => {
      const { id } = await instanceIn(api, owner, state);
      assertError(await client.get(path(id)), 'VM_NOT_RUNNING');
    });
  }
});

describe('503', () => {
  test('the host does not answer', async () => {
    assertError(await client.get(path(running.id)), 'UNAVAILABLE', /host/);
  });
});
