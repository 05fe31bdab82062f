/** The scrub of one whole segment: everything that can be wrong with it is found. */
import { frameCrc, unpackFrame } from './frame-codec.ts';
import {
  BLOCK_BYTES,
  decodeDirectory,
  FRAME_KIND,
  SegmentCorruptError,
  type SegmentDirectory,
} from './segment-format.ts';
import { verifyKey } from './segment-key.ts';

/**
 * Verifies a whole object: directory, key, and every frame by CRC and by the hash of its block.
 * Synchronous and heavy (some 30 ms a segment): for scrubs and tests.
 * @throws SegmentCorruptError
 */
export function verifySegment(key: string, object: Buffer): SegmentDirectory {
  const directory = decodeDirectory(key, object.length, object);
  verifyKey(key, directory.identity);
  const out = Buffer.allocUnsafe(BLOCK_BYTES);
  for (const { block, kind, offset, stored_bytes, crc32, hash } of directory.entries) {
    const stored = object.subarray(offset, offset + stored_bytes);
    if (crc32 !== (kind === FRAME_KIND.zero ? 0 : frameCrc(stored))) {
      throw new SegmentCorruptError(key, 'the CRC of its stored bytes does not match', { block });
    }
    const problem = unpackFrame(kind, stored, hash, out);
    if (problem !== undefined) throw new SegmentCorruptError(key, problem, { block });
  }
  return directory;
}
