import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import type { Assignment, FlushFailure, FlushResult } from '../../protocol/types.ts';
import { type FlushId, newId } from '../../shared/ids.ts';
import { createLog } from '../../shared/log.ts';
import { AutoFlush, type FlushedVm, Flushes } from './flushes.ts';

const RECEIPT = { commit_id: 'c', consistency: 'filesystem' } as FlushResult;

test('of automatic flushes that fail the first in a row is reported; a requested flush ends the row too', async () => {
  let works = true;
  const reported: FlushFailure[] = [];
  const unused = () => assert.fail('not part of this');
  const vm: FlushedVm = {
    context: { log: createLog('test', 'silent') },
    reporter: {
      flush: async () => undefined,
      flushFailure: async (failure) => void reported.push(failure),
    },
    local: {
      flush: async () => {
        if (works) return RECEIPT;
        throw new Error('no room');
      },
      ...{ launch: unused, lookForUnsaved: unused, markSaved: unused },
      ...{ unsaved: null, lost: null, saved_by: null },
      get running() {
        return unused();
      },
    },
    ...{ endMachine: unused, report: unused, reportFailed: unused },
  };
  const flushes = new Flushes(vm);
  const { signal } = new AbortController();
  const flush = (asked: FlushId | null, does: boolean) => {
    works = does;
    return flushes.flush({ vm_id: newId('vm'), epoch: 1, flush_id: asked } as Assignment, signal);
  };
  assert.equal(await flush(null, false), false);
  assert.equal(await flush(newId('flush'), false), false);
  assert.equal(reported.length, 1);
  assert.equal(await flush(newId('flush'), true), true);
  await flush(null, false);
  assert.equal(reported.length, 2);
  await flush(null, true);
  await flush(null, false);
  assert.equal(reported.length, 3);
});

function scene(): { auto: AutoFlush; calls: () => number; pass: (seconds: number) => void } {
  mock.timers.enable({ apis: ['setInterval', 'setTimeout'] });
  let calls = 0;
  const auto = new AutoFlush(() => {
    calls += 1;
  });
  return { auto, calls: () => calls, pass: (seconds) => mock.timers.tick(seconds * 1000) };
}

test.afterEach(() => mock.timers.reset());

test('an automatic flush is due when its interval has passed and something was written', () => {
  const { auto, calls, pass } = scene();
  auto.configure(60);
  auto.observe(200_000);
  pass(59);
  assert.equal(auto.due, false);
  pass(1);
  assert.equal(auto.due, true);
  assert.equal(calls(), 1);
  auto.close();
});

test('a write after the interval has passed is flushed as soon as it is seen', () => {
  const { auto, calls, pass } = scene();
  auto.configure(60);
  pass(300);
  assert.equal(auto.due, false);
  auto.observe(200_000);
  assert.equal(calls(), 1);
  auto.close();
});

test('the one block that a thaw itself dirties waits ten intervals', () => {
  const { auto, pass } = scene();
  auto.configure(60);
  auto.observe(65_536);
  pass(599);
  assert.equal(auto.due, false);
  pass(1);
  assert.equal(auto.due, true);
  auto.close();
});

test('null turns it off', () => {
  const { auto, pass } = scene();
  auto.configure(60);
  auto.observe(200_000);
  auto.configure(null);
  pass(6_000);
  assert.equal(auto.due, false);
  auto.close();
});

test('a flush can be hurried even if the automatic one is off, and no longer is once it begins', () => {
  const { auto, calls, pass } = scene();
  auto.configure(null);
  auto.hurry(2_000);
  pass(1);
  assert.equal(auto.due, false);
  pass(1);
  assert.equal(auto.due, true);
  assert.equal(calls(), 1);
  auto.began();
  assert.equal(auto.due, false);
  auto.close();
});

test('a hurried flush that fails is due again, until one has saved it', () => {
  const { auto, pass } = scene();
  auto.configure(null);
  auto.hurry(2_000);
  // By a caller, before it is due.
  auto.began();
  auto.ended(false);
  for (let failures = 0; failures < 2; failures++) {
    assert.equal(auto.due, false);
    pass(30);
    assert.equal(auto.due, true);
    auto.began();
    auto.ended(failures === 1);
  }
  pass(3_600);
  assert.equal(auto.due, false);
  auto.began();
  auto.ended(false);
  pass(3_600);
  assert.equal(auto.due, false);
  auto.close();
});
