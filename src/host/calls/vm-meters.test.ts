import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { ControlPlaneUnavailable, RequestRefused } from '../../protocol/client.ts';
import type { VmSample } from '../../protocol/host-calls.ts';
import type { MinutesReport, UsedMinute } from '../../protocol/host-types.ts';
import { newId } from '../../shared/ids.ts';
import { createLog } from '../../shared/log.ts';
import { MinuteLog, type Readings, readingsOf } from './vm-meters.ts';

const BEGIN_MS = Date.UTC(2026, 0, 1);
const id = newId('inst');
const at = (second: number) => BEGIN_MS + second * 1000;

function sample(
  second: number,
  change: { cpu?: number; read?: number; received?: number | null } = {},
): VmSample {
  return {
    at: new Date(at(second)).toISOString(),
    cpu_seconds: change.cpu ?? 0,
    memory: { host_bytes: 400, used_bytes: null, total_bytes: null },
    disk: { read_bytes: change.read ?? 0, written_bytes: 0, read_operations: 0, write_operations: 0 },
    network: { received_bytes: change.received ?? null, sent_bytes: change.received ?? null },
  };
}

/** Takes what the log sends. */
function receiver(log: MinuteLog) {
  const got: UsedMinute[] = [];
  let away = false;
  return {
    got,
    set away(value: boolean) {
      away = value;
    },
    send: () =>
      log.send(async ({ minutes }: MinutesReport) => {
        if (away) throw new ControlPlaneUnavailable('away');
        got.push(...minutes);
      }),
  };
}

describe('readings', () => {
  test('are levels, and rates since the sample before', () => {
    const found = readingsOf(sample(15, { cpu: 3, read: 1500 }), { before: sample(0), dirty: 7 });
    const levels = { memory_host: 400, dirty: 7 };
    assert.deepEqual(found, { cpu: 0.2, disk_read: 100, disk_written: 0, ...levels });
  });
  test('count the network since the guest last answered, which may be several samples ago', () => {
    const heard = sample(0, { received: 100 });
    const found = readingsOf(sample(60, { received: 700 }), { before: sample(45), heard, dirty: null });
    assert.equal(found.network_received, 10);
    assert.equal(found.network_sent, 10);
  });
  test('have no rate without a sample before, after a reset of the counter, and without time between', () => {
    const { cpu, disk_read } = readingsOf(sample(15), { dirty: null });
    assert.deepEqual([cpu, disk_read], [undefined, undefined]);
    const reset = readingsOf(sample(15, { cpu: 1 }), { before: sample(0, { cpu: 2 }), dirty: null });
    assert.equal(reset.cpu, undefined);
    assert.equal(readingsOf(sample(0), { before: sample(0), dirty: null }).cpu, undefined);
  });
});

describe('minutes', () => {
  test('hold mean, minimum and maximum of their readings, and end with the next minute', async () => {
    const log = new MinuteLog(createLog('test', 'silent'));
    const { got, send } = receiver(log);
    for (const [nth, cpu] of [0, 0.5, 1].entries()) log.add(id, at(nth * 15), { cpu });
    log.endBefore(at(59));
    await send();
    assert.equal(got.length, 0);
    log.endBefore(at(60));
    await send();
    assert.deepEqual(
      got.map(({ instance_id, at, spreads }) => [instance_id, Date.parse(at), spreads.cpu, spreads.dirty]),
      [[id, BEGIN_MS, { mean: 0.5, min: 0, max: 1 }, null]],
    );
  });
  test('wait in order while the control plane is away, and are sent once it is back', async () => {
    const log = new MinuteLog(createLog('test', 'silent'));
    const receiving = receiver(log);
    receiving.away = true;
    for (let minute = 0; minute < 60; minute++) {
      log.add(id, at(minute * 60), { cpu: 1 });
      log.endBefore(at(minute * 60 + 60));
      await receiving.send();
    }
    assert.equal(log.waiting, 60);
    receiving.away = false;
    await receiving.send();
    assert.equal(log.waiting, 0);
    assert.deepEqual(
      receiving.got.map((each) => Date.parse(each.at)),
      Array.from({ length: 60 }, (_, minute) => at(minute * 60)),
    );
  });
  test('that are refused are dropped, and those with figures that no VM has are not sent', async () => {
    const log = new MinuteLog(createLog('test', 'silent'));
    const add = (readings: Readings) => {
      log.add(id, at(0), readings);
      log.endBefore(at(60));
    };
    const { got, send } = receiver(log);
    add({ cpu: -1 });
    add({ cpu: 1 });
    add({ memory_used: Number.NaN });
    await send();
    assert.deepEqual(
      got.map(({ spreads }) => spreads.cpu?.mean),
      [1],
    );
    add({ cpu: 2 });
    await log.send(async ({ minutes }) => {
      if (minutes.length > 0) throw new RequestRefused('refused');
    });
    assert.equal(log.waiting, 0);
  });
  test('are bounded: the oldest are dropped', () => {
    const log = new MinuteLog(createLog('test', 'silent'));
    for (let minute = 0; minute <= 20_001; minute++) log.add(id, at(minute * 60), { cpu: 1 });
    assert.equal(log.waiting, 20_000);
  });
});
