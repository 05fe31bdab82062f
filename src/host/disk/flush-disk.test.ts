import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { only, type Parts } from '../../../test/support/only.ts';
import { scriptedQmp } from '../../../test/support/scripted-qmp.ts';
import { BlockMap } from '../../disk-format/block-map.ts';
import type { DiskHead } from '../../protocol/types.ts';
import { newId } from '../../shared/ids.ts';
import { createLog } from '../../shared/log.ts';
import { QmpTimeoutError } from '../qemu/qmp-client.ts';
import type { Machine } from '../vm/machine.ts';
import type { FlushRecord } from '../vm/record.ts';
import { type DiskState, FencedError, HeadMovedError } from './disk-state.ts';
import { type FlushOptions, flushMachine } from './flush-disk.ts';

const HEAD = only<DiskHead>({ generation: 0, commit_id: 'made', durable_at: null });
const DISK = {
  ...{ instance_id: newId('inst'), key_prefix: 'disks/x', size_bytes: 65_536, write_key: null },
  ...{
    head: HEAD,
    headOrNull: { size_bytes: 65_536 },
    map: new BlockMap(),
    load: async () => undefined,
    refresh: async () => HEAD,
    renewKeys: async () => undefined,
  },
};
const RECORD = { epoch: 1, counts_from: 'made', full_compare: false, frozen: false, flush: null };
const nothing = async () => undefined;
/** Of a disk that was not flushed yet. */
const UNKNOWN = {
  sizeBytes: async () => 65_536,
  noteBegun: () => undefined,
  noteFrozen: nothing,
  noteThawed: nothing,
  noteFlushed: nothing,
};
const EXPORTED = { syncToDisk: nothing };
const optionsOf = (
  machine: Parts<Machine>,
  quiesce: FlushOptions['quiesce'],
  disk: Parts<DiskState> = {},
): FlushOptions => ({
  context: only<FlushOptions['context']>({ log: createLog('test', 'silent'), store: {}, pool: {} }),
  ...{ machine: only<Machine>(machine), disk: only<DiskState>({ ...DISK, ...disk }) },
  ...{ owner: null, quiesce, signal: new AbortController().signal },
});

async function runtimeFolder(t: TestContext): Promise<string> {
  const runtime = await mkdtemp(join(tmpdir(), 'bfm-'));
  t.after(() => rm(runtime, { recursive: true, force: true }));
  return runtime;
}

test('a receipt says crash if the guest was not frozen, even if no block was marked', async (t) => {
  const record = { ...RECORD };
  const thawed = Promise.withResolvers<void>();
  const machine = {
    folder: { runtime: await runtimeFolder(t) },
    qmp: scriptedQmp(() => []),
    record,
    agent: {
      is_cut_off: false,
      fsfreeze: (): Promise<number> => Promise.reject(new Error('no reply')),
      thaw: async () => 0,
      fsfreezeStatus: async () => 'thawed' as const,
    },
    ...{ resets: 0, gone: false, broken: false },
    ...{ disk: { ...UNKNOWN, isUntouched: async () => false }, markedBytes: async () => 0 },
    update: async (change: { frozen?: boolean }) => {
      Object.assign(record, change);
      if (change.frozen === false) thawed.resolve();
    },
  };
  const receipt = await flushMachine(optionsOf(machine, 'freeze'));
  assert.deepEqual([receipt.consistency, receipt.uploaded_bytes], ['crash', 0]);
  await thawed.promise;
});

test('a receipt without a commit is not given for a head that the database has lost', async (t) => {
  const machine = {
    folder: { runtime: await runtimeFolder(t) },
    ...{ qmp: scriptedQmp(() => []), record: RECORD, gone: false, disk: UNKNOWN },
    markedBytes: async () => 0,
  };
  const moved = { refresh: async () => only<DiskHead>({ ...HEAD, commit_id: 'before' }) };
  await assert.rejects(flushMachine(optionsOf(machine, 'offline', moved)), HeadMovedError);
});

test('a disk that is larger than the database knows is not flushed: its growth was lost there', async (t) => {
  const machine = {
    folder: { runtime: await runtimeFolder(t) },
    ...{ qmp: scriptedQmp(() => []), record: RECORD, gone: false },
    disk: { ...UNKNOWN, sizeBytes: async () => 2 ** 30 },
  };
  await assert.rejects(flushMachine(optionsOf(machine, 'offline')), /the disk has 1 GiB.*set disk_gib to 1/);
});

test('a backup job whose speed QEMU does not confirm is cancelled, and its guest continues', async (t) => {
  const runtime = await runtimeFolder(t);
  let job: string | null = null;
  const asked: string[] = [];
  const reply = (command: string) => {
    asked.push(command);
    if (command === 'transaction') job = 'running';
    if (command === 'job-cancel') job = 'concluded';
    if (command === 'job-dismiss') job = null;
    if (command === 'block-job-set-speed') throw new QmpTimeoutError('no reply');
    return command === 'query-jobs' && job !== null ? [{ id: 'flush-1', status: job }] : [];
  };
  // Never resolves, because nothing changes in this test.
  const waitForEvent = () => new Promise<never>(() => undefined);
  const machine = {
    folder: { runtime },
    qmp: scriptedQmp(reply, { waitForEvent }),
    record: RECORD,
    ...{ gone: false, disk: UNKNOWN, exported: EXPORTED },
    markedBytes: async () => 65_536,
    resumeIfStalled: async () => void asked.push('resumed'),
  };
  const flushed = flushMachine(optionsOf(machine, 'crash'));
  await assert.rejects(flushed, QmpTimeoutError);
  const after_it = asked.slice(asked.indexOf('block-job-set-speed') + 1);
  assert.ok(after_it.includes('job-cancel') && after_it.includes('resumed'), after_it.join());
  assert.equal(job, null);
});

test('a flush that cannot be undone still fails with its cause: a fenced machine must end', async (t) => {
  const runtime = await runtimeFolder(t);
  let refused: Error | null = null;
  const reply = (command: string) => {
    if (command === 'block-job-set-speed') refused = new FencedError('another has the disk');
    if (command === 'query-jobs' && refused) throw new QmpTimeoutError('no reply');
    if (refused) throw refused;
    return [];
  };
  const machine = {
    ...{ folder: { runtime }, qmp: scriptedQmp(reply), gone: false, markedBytes: async () => 65_536 },
    ...{ disk: UNKNOWN, exported: EXPORTED },
    record: RECORD,
  };
  await assert.rejects(flushMachine(optionsOf(machine, 'crash')), FencedError);
});

test('a bitmap is removed only once the record names no flush, because a successor trusts the record', async (t) => {
  const runtime = await runtimeFolder(t);
  const committed = only<FlushRecord>({ job_id: 'flush-1', generation: 1, commit_id: 'one' });
  const record = {
    ...RECORD,
    counts_from: 'one',
    full_compare: true,
    flush: committed as FlushRecord | null,
  };
  const named: unknown[] = [];
  const machine = {
    folder: { runtime },
    qmp: scriptedQmp((command) => {
      if (command === 'block-dirty-bitmap-remove') named.push(record.flush);
      if (command === 'transaction') throw new QmpTimeoutError('no reply');
      return [];
    }),
    ...{ record, gone: false, disk: UNKNOWN },
    ...{
      markedBytes: async () => null,
      update: async (change: object) => void Object.assign(record, change),
    },
  };
  const disk = { head: { generation: 1, commit_id: 'one', durable_at: null } };
  await assert.rejects(flushMachine(optionsOf(machine, 'crash', disk)), QmpTimeoutError);
  assert.deepEqual(named, [null]);
});
