/** How much of a disk is in object storage, in the words of every page: `all saved`, `12 MiB unsaved`. */
import type { Instance } from '../../../client/src/berth.ts';
import { bytes, duration } from '../format.ts';

/** Of a failed VM the server knows only an upper bound. */
export function savedState({ disk, vm }: Pick<Instance, 'disk' | 'vm'>): string {
  if (disk.dirty_bytes > 0)
    return `${vm.state === 'failed' ? 'at most ' : ''}${bytes(disk.dirty_bytes)} unsaved`;
  return disk.generation === 0 ? 'nothing yet' : 'all saved';
}

/** The unit in which the host counts and saves. */
const BLOCK_BYTES = 64 * 1024;
/** A single block waits this many intervals of the automatic flush (src/host/reconciler/auto-flush.ts). */
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
