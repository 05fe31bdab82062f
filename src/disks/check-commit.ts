/** What a host may name in a commit: objects that it wrote for this disk, in this placement, as this generation. */
import type { CommitRequest } from '../agent-api/types.ts';
import { invalid } from '../lib/errors.ts';

const BLOCK_BYTES = 65_536;
/** A flush may send a block again that was overwritten while it ran; nothing sends one this often. */
const TIMES_A_BLOCK = 4;

/** @throws AppError INVALID_REQUEST */
export function checkCommit(
  { instance_id, epoch, generation, segments }: CommitRequest,
  disk_bytes: number,
): void {
  const begin = `disks/${instance_id}/seg/${epoch}/${generation}-`;
  const keys = new Set<string>();
  let blocks = 0;
  for (const [i, { key, entries }] of segments.entries()) {
    if (!key.startsWith(begin)) {
      throw invalid(`segments.${i}.key`, 'is no object of this disk, placement and generation');
    }
    if (keys.has(key)) throw invalid(`segments.${i}.key`, 'is there twice');
    keys.add(key);
    blocks += entries;
  }
  if (blocks > TIMES_A_BLOCK * Math.ceil(disk_bytes / BLOCK_BYTES)) {
    throw invalid('segments', 'hold more blocks than the disk has');
  }
}
