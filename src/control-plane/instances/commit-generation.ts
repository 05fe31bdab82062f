/** Commits a generation that a host has stored: its objects, the head and the receipt, in one transaction. */

import type { CommitRequest, CommitResponse } from '../../protocol/types.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { invalid } from '../../shared/errors.ts';
import type { HostId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { mayWriteWith } from '../disks/data-keys.ts';
import { checkCommit } from '../disks/read-head.ts';
import {
  advanceHead,
  eraseGivenUserData,
  findGeneration,
  keysOf,
  mayWrite,
  totalBytes,
} from '../disks/store.ts';
import { append } from '../events/append.ts';
import { addUse } from '../usage/store.ts';
import { instanceView } from './model.ts';
import { findFlushRequester, getInstance, type InstanceRow, lockInstance } from './store.ts';

/** Why a flush was made. */
const FLUSH_TRIGGERS = ['request', 'auto', 'stop', 'suspend'] as const;
export type FlushTrigger = (typeof FLUSH_TRIGGERS)[number];

export interface FlushCause {
  readonly trigger: FlushTrigger;
  /** Who asked for the flush, the stop or the suspend; of an automatic flush, the host. */
  readonly actor: string;
}

/** Of the flush that the host commits now. The caller has locked the instance. */
async function flushCause(tx: Tx, row: InstanceRow, host_id: HostId): Promise<FlushCause> {
  // A host runs one flush of a disk at a time, and says so before it begins a requested one.
  const requested_by = await findFlushRequester(tx, row.id);
  if (requested_by !== undefined) return { trigger: 'request', actor: requested_by };
  const actor = row.reason_actor ?? host_id;
  if (row.state === 'stopping') return { trigger: 'stop', actor };
  if (row.state === 'suspending') return { trigger: 'suspend', actor };
  return { trigger: 'auto', actor: host_id };
}

/**
 * Commits a generation whose segments are all in the object store. The answer is `fenced` when the writer is not the
 * instance's newest VM, or does not follow the head. A repeated commit (its answer was lost) is accepted once.
 * @throws AppError INVALID_REQUEST for objects that are not this disk's
 */
export async function commitGeneration(
  db: Db,
  host_id: HostId,
  commit: CommitRequest,
): Promise<CommitResponse> {
  return transaction(db, async (tx) => {
    await lockInstance(tx, commit.instance_id);
    const row = await getInstance(tx, commit.instance_id);
    if (!row || row.deleting) return fenced('the instance is gone');
    if (row.vm_id !== commit.vm_id || row.host_id !== host_id) return fenced('another VM has the disk');
    checkCommit(commit, row.size_bytes);
    const before = await findGeneration(tx, commit.instance_id, commit.generation);
    if (before) {
      return before.commit_id === commit.commit_id
        ? { outcome: 'committed', durable_at: rfc3339(before.created_at) }
        : fenced(`generation ${commit.generation} was committed by another flush`);
    }
    if (!mayWrite(row)) return fenced(`the VM is ${row.state}`);
    if (!(await mayWriteWith(tx, commit.instance_id, keysOf(commit.segments), commit.generation)))
      throw invalid('segments', 'are encrypted with a retired key of this disk');
    const { trigger, actor } = await flushCause(tx, row, host_id);
    const durable_at = await advanceHead(tx, commit, commit, trigger);
    if (durable_at === null)
      return fenced(`the head is generation ${row.generation} of epoch ${row.disk_epoch}`);
    await eraseGivenUserData(tx, commit.instance_id);
    const { instance_id, dirty_bytes: flushed_bytes } = commit;
    await addUse(tx, [{ instance_id, at: durable_at, flushed_bytes }]);
    await append(tx, {
      org_id: row.org_id,
      instance_id: commit.instance_id,
      type: 'disk.flushed',
      data: {
        instance: instanceView({ ...row, generation: commit.generation, durable_at }),
        flush: {
          generation: commit.generation,
          durable_at: rfc3339(durable_at),
          dirty_bytes: commit.dirty_bytes,
          uploaded_bytes: totalBytes(commit.segments),
          segments: commit.segments.length,
          consistency: commit.consistency,
          trigger,
        },
      },
      actor,
    });
    await notify(tx, 'instance', commit.instance_id);
    return { outcome: 'committed', durable_at: rfc3339(durable_at) };
  });
}

function fenced(why: string): CommitResponse {
  return { outcome: 'fenced', why };
}
