/** Verifies one whole segment, for tests; verify-disk.ts verifies the blocks that a disk uses. */
import { present } from '../shared/assert.ts';
import { NOT_ITS_FRAME } from './compress-batch.ts';
import { FrameCipher } from './frame-cipher.ts';
import { frameCrc, unpackFrame } from './frame-codec.ts';
import { type KeyRing, PURPOSE } from './key-ring.ts';
import {
  BLOCK_BYTES,
  decodeDirectory,
  FRAME_KIND,
  SegmentCorruptError,
  type SegmentDirectory,
  type SegmentEntry,
} from './segment-format.ts';
import { verifyKey } from './segment-key.ts';

const WRONG_CRC = 'the CRC of its stored bytes does not match';

/**
 * Verifies a whole object: directory, key, and every frame by its tag or CRC and by the hash of its block.
 * Synchronous and slow (about 30 ms a segment).
 * @throws SegmentCorruptError
 */
export function verifySegment(key: string, object: Buffer, keys: KeyRing): SegmentDirectory {
  const directory = decodeDirectory(key, object.length, object, keys);
  verifyKey(key, directory.identity);
  const { encryption } = directory.identity;
  // The directory has decrypted, so the key exists.
  const segment_key = encryption && present(keys.derive(encryption, PURPOSE.segment), 'key of a segment');
  const cipher = segment_key && new FrameCipher(segment_key, directory.identity);
  const out = Buffer.allocUnsafe(BLOCK_BYTES);
  for (const entry of directory.entries) {
    const { block, kind, offset, stored_bytes, hash } = entry;
    const stored = object.subarray(offset, offset + stored_bytes);
    const fail = (problem: string): never => {
      throw new SegmentCorruptError(key, problem, { block });
    };
    const plain = openFrame(entry, stored, cipher) ?? fail(cipher ? NOT_ITS_FRAME : WRONG_CRC);
    const problem = unpackFrame(kind, plain, hash, out);
    if (problem !== undefined) fail(problem);
  }
  return directory;
}

/** The packed bytes. Undefined when tag or CRC do not match. */
function openFrame(
  { block, kind, mark }: SegmentEntry,
  stored: Buffer,
  cipher: FrameCipher | null,
): Uint8Array | undefined {
  if (kind === FRAME_KIND.zero) return mark === 0 ? stored : undefined;
  if (cipher) return cipher.open(block, kind, mark, stored);
  return mark === frameCrc(stored) ? stored : undefined;
}
