/** The API of a VM's metrics. test/guest has the measurement. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { type VmMetrics, withShares } from '../../src/control-plane/vms/metric-routes.ts';
import type { VmSample } from '../../src/protocol/host-calls.ts';
import { newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError, withoutRequestId } from '../support/expect.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
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
