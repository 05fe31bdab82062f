import assert from 'node:assert/strict';
import { test } from 'node:test';
import { headOf } from '../../../test/support/host-folders.ts';
import { only } from '../../../test/support/only.ts';
import type { DiskHead } from '../../protocol/types.ts';
import { newId } from '../../shared/ids.ts';
import type { DiskStateContext } from './disk-state.ts';
import { type Commit, DiskState, FencedError, HeadMovedError } from './disk-state.ts';

test('a commit is refused for good only where another placement has the disk', async () => {
  const instance_id = newId('inst');
  const before: DiskHead = {
    ...headOf(instance_id, { generation: 1, commit_id: 'one', size_bytes: 65_536 }),
    epoch: 3,
  };
  const flush: Commit = {
    ...{ generation: 2, commit_id: 'flush-2', segments: [], dirty_bytes: 0, consistency: 'crash' },
  };
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
    let head: DiskHead | null = before;
    const client = {
      head: async () => head,
      commit: async () => ({ outcome: 'fenced', why: 'the head' }) as const,
      lineage: async () => ({ known: true, continues }),
    };
    const disk = new DiskState(
      only<DiskStateContext>({ store: {}, client, images: { stored: async () => undefined } }),
      instance_id,
    );
    await disk.load();
    head = now;
    const record = { vm_id: newId('vm'), epoch: 3, image: 'debian-12', image_version: 'v' };
    const commit = disk.commit(client, record, flush, new AbortController().signal);
    await assert.rejects(commit, error, why);
  }
});
