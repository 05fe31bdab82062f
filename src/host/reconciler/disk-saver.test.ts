import assert from 'node:assert/strict';
import { test } from 'node:test';
import { only } from '../../../test/support/only.ts';
import type { Assignment, FlushFailure, FlushResult } from '../../protocol/types.ts';
import { type FlushId, newId } from '../../shared/ids.ts';
import { createLog } from '../../shared/log.ts';
import { DiskSaver, type DiskSaverParts } from './disk-saver.ts';

const RECEIPT = { commit_id: 'c', consistency: 'filesystem' } as FlushResult;

test('of automatic flushes that fail the first in a row is reported; a requested flush ends the row too', async () => {
  let works = true;
  const told: FlushFailure[] = [];
  const parts = only<DiskSaverParts>({
    local: {
      flush: async () => {
        if (works) return RECEIPT;
        throw new Error('no room');
      },
    },
    reporter: {
      flush: async () => undefined,
      flushFailure: async (failure: FlushFailure) => void told.push(failure),
    },
    log: createLog('test', 'silent'),
    endMachine: () => assert.fail(),
    reportFailed: () => assert.fail(),
  });
  const saver = new DiskSaver(parts);
  const { signal } = new AbortController();
  const flush = (asked: FlushId | null, does: boolean) => {
    works = does;
    return saver.flush({ vm_id: newId('vm'), epoch: 1, flush_id: asked } as Assignment, signal);
  };
  assert.equal(await flush(null, false), false);
  assert.equal(await flush(newId('flush'), false), false);
  assert.equal(told.length, 1);
  assert.equal(await flush(newId('flush'), true), true);
  await flush(null, false);
  assert.equal(told.length, 2);
  await flush(null, true);
  await flush(null, false);
  assert.equal(told.length, 3);
});
