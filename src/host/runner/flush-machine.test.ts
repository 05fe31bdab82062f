import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { BlockMap } from '../../disk-format/block-map.ts';
import { newId } from '../../lib/ids.ts';
import { createLog } from '../../lib/log.ts';
import { QmpTimeoutError } from '../qmp/qmp-client.ts';
import { type FlushOptions, flushMachine } from './flush-machine.ts';

test('a copy that QEMU began and whose speed it does not answer for is cancelled, and its guest goes on', async (t) => {
  const runtime = await mkdtemp(join(tmpdir(), 'bfm-'));
  t.after(() => rm(runtime, { recursive: true, force: true }));
  let job: string | null = null;
  const asked: string[] = [];
  const execute = async (command: string) => {
    asked.push(command);
    if (command === 'transaction') job = 'running';
    if (command === 'job-cancel') job = 'concluded';
    if (command === 'job-dismiss') job = null;
    if (command === 'block-job-set-speed') throw new QmpTimeoutError('no reply');
    return command === 'query-jobs' && job !== null ? [{ id: 'flush-1', status: job }] : [];
  };
  // Never: what has not changed when it is looked at does not change here.
  const waitForEvent = () => new Promise(() => undefined);
  const machine = {
    folder: { runtime },
    qmp: { execute, waitForEvent },
    record: { epoch: 1, full_compare: false, frozen: false, flush: null },
    gone: false,
    markedBytes: async () => 65_536,
    resumeIfStalled: async () => asked.push('resumed'),
  };
  const disk = {
    ...{ instance_id: newId('inst'), key_prefix: 'disks/x', size_bytes: 65_536, write_key: null },
    ...{ head: { generation: 0, durable_at: null }, map: new BlockMap(), load: async () => undefined },
  };
  const flushed = flushMachine({
    ...{ context: { log: createLog('test', 'silent') }, machine, disk },
    ...{ owner: null, quiesce: 'crash', signal: new AbortController().signal },
  } as unknown as FlushOptions);
  await assert.rejects(flushed, QmpTimeoutError);
  const after_it = asked.slice(asked.indexOf('block-job-set-speed') + 1);
  assert.ok(after_it.includes('job-cancel') && after_it.includes('resumed'), after_it.join());
  assert.equal(job, null);
});
