/** QEMU's side of a flush: the target node, the backup job from the overlay to it, and what undoes both. */
import { messageOf } from '../../shared/errors.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { NODES } from '../qemu/qemu-command.ts';
import { QmpError, waitForJob } from '../qemu/qmp-client.ts';
import type { TransactionAction } from '../qemu/qmp-types.ts';
import type { Machine } from '../vm/machine.ts';
import { DIRTY_BITMAP, DIRTY_GRANULARITY } from './dirty-blocks.ts';

const JOB_MS = 6 * 3_600_000;
const TARGET_NODE = 'flush-target';
/** Bytes a second. A thaw beside a copy at full speed took up to 1.8 s, and beside this one 41 to 49 ms. */
const SPEED_WHILE_FROZEN = 65_536;
const JOB_PREFIX = 'flush-';

export function flushJobId(generation: number): string {
  return `${JOB_PREFIX}${generation}`;
}

export function isFlushJob({ id }: { readonly id: string }): boolean {
  return id.startsWith(JOB_PREFIX);
}

/** Connects QEMU to the flush's export. */
export async function addTarget({ qmp }: Machine, socket_path: string): Promise<void> {
  await qmp.execute('blockdev-add', {
    driver: 'nbd',
    'node-name': TARGET_NODE,
    server: { type: 'unix', path: socket_path },
    export: 'flush',
  });
}

export async function removeTarget({ qmp }: Machine): Promise<void> {
  await qmp.execute('blockdev-del', { 'node-name': TARGET_NODE }).catch(() => undefined);
}

/** Takes the point in time. The job copies slowly until {@link giveFullSpeed}. */
export async function beginBackup(machine: Machine, job_id: string): Promise<void> {
  const { full_compare } = machine.record;
  if (full_compare) await removeBitmap(machine);
  await machine.qmp.execute('transaction', { actions: backupActions(job_id, full_compare) });
}

/** A job that has ended refuses a new speed. A job that stayed slow would run for hours. */
export async function giveFullSpeed({ qmp }: Machine, job_id: string): Promise<void> {
  try {
    await qmp.execute('block-job-set-speed', { device: job_id, speed: 0 });
  } catch (error) {
    if (!(error instanceof QmpError)) throw error;
  }
}

/** Resolves when all data of the job is written to the target. */
export async function awaitBackup({ qmp }: Machine, job_id: string, signal: AbortSignal): Promise<void> {
  const job = await waitForJob(qmp, job_id, ['pending'], { timeout_ms: JOB_MS, signal });
  if (job.status === 'pending') return;
  throw new Error(untrustedText(job.error) || `the backup job ended as ${untrustedText(job.status)}`);
}

/** After the commit: the bitmap's bits are dropped. */
export async function finalizeBackup({ qmp }: Machine, job_id: string): Promise<void> {
  await qmp.execute('job-finalize', { id: job_id });
  const job = await waitForJob(qmp, job_id, ['concluded'], { timeout_ms: 60_000 });
  await qmp.execute('job-dismiss', { id: job_id });
  await qmp.execute('blockdev-del', { 'node-name': TARGET_NODE });
  if (job.error) throw new Error(`the backup job ended with: ${untrustedText(job.error)}`);
}

/** Undoes a failed flush: every dirty bit comes back, and a guest that the failed copy paused continues. */
export async function undoBackup(machine: Machine): Promise<void> {
  try {
    await clearLeftovers(machine);
    if (machine.record.full_compare) await removeBitmap(machine);
    await machine.resumeIfStalled();
  } catch (error) {
    if (!machine.gone)
      throw new Error(`a failed flush could not be undone: ${messageOf(error)}`, { cause: error });
  }
}

/** Removes the jobs and the target that a failed flush, or an agent that died, has left in QEMU. */
export async function clearLeftovers(machine: Machine): Promise<void> {
  const { qmp } = machine;
  for (const job of (await qmp.execute('query-jobs', undefined)).filter(isFlushJob)) {
    if (job.status !== 'concluded') {
      await qmp.execute('job-cancel', { id: job.id }).catch(() => undefined);
      await waitForJob(qmp, job.id, ['concluded'], { timeout_ms: 30_000 });
    }
    await qmp.execute('job-dismiss', { id: job.id }).catch(() => undefined);
  }
  await removeTarget(machine);
  // Also the record of a flush that was committed and has not ended: a successor would trust the bitmap that this one left.
  if (machine.record.flush) await machine.update({ flush: null });
}

/**
 * By the bitmap: all blocks written since the last flush. Without a bitmap that can be trusted (the last machine was killed):
 * all that the overlay holds, and a new bitmap begins at the same instant; the sink's hashes leave out what the head has.
 */
function backupActions(job_id: string, full_compare: boolean): TransactionAction[] {
  const common = {
    'job-id': job_id,
    device: NODES.overlay,
    target: TARGET_NODE,
    speed: SPEED_WHILE_FROZEN,
    'auto-finalize': false,
    'auto-dismiss': false,
  } as const;
  if (!full_compare) {
    return [
      {
        type: 'blockdev-backup',
        data: { ...common, sync: 'bitmap', bitmap: DIRTY_BITMAP, 'bitmap-mode': 'on-success' },
      },
    ];
  }
  return [
    {
      type: 'block-dirty-bitmap-add',
      data: { node: NODES.overlay, name: DIRTY_BITMAP, granularity: DIRTY_GRANULARITY, persistent: false },
    },
    { type: 'blockdev-backup', data: { ...common, sync: 'top' } },
  ];
}

/** A bitmap that cannot be trusted: of a flush that was not undone before its agent died. There may be none. */
async function removeBitmap({ qmp }: Machine): Promise<void> {
  const bitmap = { node: NODES.overlay, name: DIRTY_BITMAP };
  await qmp.execute('block-dirty-bitmap-remove', bitmap).catch(() => undefined);
}
