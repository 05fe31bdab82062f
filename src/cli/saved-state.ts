/** How much of a disk is in object storage, in the words of every command: `all saved`, `12 MiB unsaved`. */
import type { Instance } from '../../client/src/berth.ts';
import { bytes } from './table.ts';

/** Of a failed VM the server knows only an upper bound. */
export function savedState({ disk, vm }: Pick<Instance, 'disk' | 'vm'>): string {
  if (disk.dirty_bytes > 0)
    return `${vm.state === 'failed' ? 'at most ' : ''}${bytes(disk.dirty_bytes)} unsaved`;
  return disk.generation === 0 ? 'nothing yet' : 'all saved';
}
