/** A commit may name only objects that its host wrote for this disk, epoch and generation. */
import type { CommitRequest } from '../../protocol/types.ts';
import { invalid } from '../../shared/errors.ts';

const BLOCK_BYTES = 65_536;
/** A flush resends a block that the guest overwrote meanwhile, but never this often. */
const TIMES_A_BLOCK = 4;

/** @throws AppError INVALID_REQUEST */
export function checkCommit(
  { instance_id, epoch, generation, segments }: CommitRequest,
  disk_bytes: number,
): void {
  const prefix = `disks/${instance_id}/seg/${epoch}/${generation}-`;
  const keys = new Set<string>();
  let blocks = 0;
  for (const [i, { key, entries }] of segments.entries()) {
    if (!key.startsWith(prefix)) {
      throw invalid(`segments.${i}.key`, 'is not an object of this disk, epoch and generation');
    }
    if (keys.has(key)) throw invalid(`segments.${i}.key`, 'is listed twice');
    keys.add(key);
    blocks += entries;
  }
  if (blocks > TIMES_A_BLOCK * Math.ceil(disk_bytes / BLOCK_BYTES)) {
    throw invalid('segments', 'hold more blocks than the disk has');
  }
}
