import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { HostContext } from '../host-context.ts';
import { DiskState, judgeSidecar, OvertakenError } from './disk-state.ts';
import { FencedError } from './flush-machine.ts';
import type { VmRecord } from './record.ts';

const head = { generation: 7, head_epoch: 3 };
const sidecar = { generation: 7, epoch: 3, placement: 4, clean: false, filled: true };

test('a clean overlay is worth what it says while the head is the one it names, whoever had the disk since', () => {
  assert.equal(judgeSidecar({ ...sidecar, clean: true }, head, 9), 'clean');
  assert.equal(judgeSidecar({ ...sidecar, clean: true, generation: 6 }, head, 1), 'none');
  assert.equal(judgeSidecar({ ...sidecar, clean: true, epoch: 2 }, head, 1), 'none');
});

test('an overlay with unsaved writes is kept however many failed starts came after it', () => {
  assert.equal(judgeSidecar(sidecar, head, 1), 'unsaved');
  assert.equal(judgeSidecar(sidecar, head, 4), 'unsaved');
});

test('an overlay with unsaved writes is void once another host had the disk', () => {
  assert.equal(judgeSidecar(sidecar, head, 5), 'none');
});

test('an overlay whose sidecar missed the commits of its own machine is kept', () => {
  assert.equal(judgeSidecar(sidecar, { generation: 9, head_epoch: 4 }, 1), 'unsaved');
  assert.equal(judgeSidecar(sidecar, { generation: 9, head_epoch: 5 }, 1), 'none');
});

test('a commit is refused for good only where another placement has the disk', async () => {
  const before = { generation: 1, head_epoch: 3, epoch: 3, layers: [], keys: [] };
  const cases = [
    { now: { ...before, generation: 2 }, error: OvertakenError },
    { now: { ...before, generation: 2, head_epoch: 4, epoch: 4 }, error: FencedError },
    { now: { ...before, epoch: 4 }, error: FencedError },
    { now: before, error: FencedError },
    { now: null, error: FencedError },
  ];
  for (const { now, error } of cases) {
    let head: object | null = before;
    const client = { head: async () => head, commit: async () => ({ outcome: 'fenced', why: 'the head' }) };
    const disk = new DiskState({ client } as unknown as HostContext, 'inst_x' as never);
    await disk.load();
    head = now;
    const record = { vm_id: 'vm_x', epoch: 3, image_version: 'v' } as unknown as VmRecord;
    const flush = { job_id: 'flush-2', generation: 2, segments: [], dirty_bytes: 0 } as never;
    const commit = disk.commit(client as never, record, flush, new AbortController().signal);
    await assert.rejects(commit, error, JSON.stringify(now));
  }
});
