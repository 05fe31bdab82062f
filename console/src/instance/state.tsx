/**
 * Words and badges for an instance: the state of its VM, its labels, how much of its disk is saved, and how consistent
 * the file systems of a generation are.
 */

import { Fragment } from 'preact';
import type { Generation, Instance } from '../../../client/src/berth.ts';
import { bytes, duration } from '../format.ts';
import { isChanging } from '../live/instances.ts';

/** The VM's state in a word, with a dot that is animated while the state changes. */
export function StateBadge({ instance }: { readonly instance: Instance }) {
  const state = instance.deleting ? 'deleting' : instance.vm.state;
  return (
    <span class={`state ${state}${isChanging(instance) ? ' moving' : ''}`} data-state={state}>
      <span class="dot" aria-hidden="true" />
      {state}
    </span>
  );
}

/** An instance's labels as tags. */
export function Labels({ labels }: { readonly labels: Readonly<Record<string, string>> }) {
  return (
    <>
      {Object.entries(labels).map(([key, value]) => (
        <Fragment key={key}>
          {' '}
          <span class="tag">
            {key}={value}
          </span>
        </Fragment>
      ))}
    </>
  );
}

/** Of a failed VM the server knows only an upper bound. */
export function savedState({ disk, vm }: Pick<Instance, 'disk' | 'vm'>): string {
  if (disk.dirty_bytes > 0)
    return `${vm.state === 'failed' ? 'at most ' : ''}${bytes(disk.dirty_bytes)} unsaved`;
  return disk.generation === 0 ? 'nothing yet' : 'all saved';
}

/** The unit in which the host counts and saves. */
const BLOCK_BYTES = 64 * 1024;
/** A single block waits this many intervals of the automatic flush (src/host/reconciler/flushes.ts). */
const LONE_BLOCK_INTERVALS = 10;

/** What the amount of a running VM does not tell; null: nothing. */
export function savedHint({
  disk,
  vm,
  auto_flush_seconds,
}: Pick<Instance, 'disk' | 'vm' | 'auto_flush_seconds'>): string | null {
  if (vm.state !== 'running' && vm.state !== 'restarting') return null;
  if (disk.dirty_bytes === 0 && disk.generation === 0)
    return 'Nothing is saved yet. What the guest writes is counted within 5 s; a flush also saves what it still holds in memory.';
  if (disk.dirty_bytes === BLOCK_BYTES && auto_flush_seconds !== null)
    return `64 KiB is one block: usually the file system's own note of the last flush. The automatic flush waits up to ${duration(LONE_BLOCK_INTERVALS * auto_flush_seconds)} for more. “Flush” saves it now.`;
  return 'The unsaved amount is at most 5 s old. It does not count what the guest still holds in memory; a flush saves that too.';
}

interface Words {
  readonly short: string;
  readonly long: string;
}

/** What a flush can say of the file systems that it saved, in plain words (`consistency` of the API). */
export const CONSISTENCY: Readonly<Record<Generation['consistency'], Words>> = {
  filesystem: {
    short: 'complete files',
    long: 'Complete: the guest wrote everything out and paused its file systems for the flush.',
  },
  crash: {
    short: 'as after a power cut',
    long: 'As after a power cut: the guest did not answer. Its file systems repair themselves at the next start, and what it held in memory is missing.',
  },
  offline: {
    short: 'saved after the VM ended',
    long: 'The VM did not run: the files are as they were when it ended.',
  },
};
