import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { HostContext } from '../host-context.ts';
import type { VmRecord } from '../vm/record.ts';
import { DiskState, FencedError, HeadMovedError } from './disk-state.ts';

test('a commit is refused for good only where another placement has the disk', async () => {
  const before = { generation: 1, commit_id: 'one', epoch: 3, layers: [], keys: [] };
  const cases = [
    {
      why: 'a late commit of ours',
      now: { ...before, generation: 2, commit_id: 'two' },
      error: HeadMovedError,
    },
    {
      why: 'our last commit is lost',
      now: { ...before, generation: 0, commit_id: 'none' },
      error: HeadMovedError,
    },
    {
      why: 'another VM',
      now: { ...before, generation: 2, commit_id: 'two' },
      continues: false,
      error: FencedError,
    },
    { why: 'another placement', now: { ...before, epoch: 4 }, error: FencedError },
    { why: 'the same head', now: before, error: FencedError },
    { why: 'no disk', now: null, error: FencedError },
  ];
  for (const { why, now, error, continues = true } of cases) {
    let head: object | null = before;
    const client = {
      head: async () => head,
      commit: async () => ({ outcome: 'fenced', why: 'the head' }),
      lineage: async () => ({ known: true, continues }),
    };
    const disk = new DiskState(
      { client, images: { stored: async () => undefined } } as unknown as HostContext,
      'inst_x' as never,
    );
    await disk.load();
    head = now;
    const record = { vm_id: 'vm_x', epoch: 3, image: 'debian-12', image_version: 'v' } as unknown as VmRecord;
    const flush = { job_id: 'flush-2', generation: 2, segments: [], dirty_bytes: 0 } as never;
    const commit = disk.commit(client as never, record, flush, new AbortController().signal);
    await assert.rejects(commit, error, why);
  }
});
