/**
 * Packs and unpacks one batch of blocks. To pack a block is to hash, compress and encrypt it; a block whose hash is
 * already known gets no frame. A frame that is not encrypted gets a CRC. Pure. Runs in the worker threads of
 * compress-pool.ts, or on the calling thread.
 */
import { assert, present } from '../shared/assert.ts';
import { release } from '../shared/release.ts';
import {
  type PackedBatch,
  type PackTask,
  UNCHANGED,
  type Unpacked,
  type UnpackTask,
} from './compress-pool.ts';
import { FrameCipher, TAG_BYTES } from './frame-cipher.ts';
import { frameCrc, packBlock, unpackFrame } from './frame-codec.ts';
import { BLOCK_BYTES, FRAME_KIND, HASH_BYTES } from './segment-format.ts';

/** The reason given for a frame that does not decrypt. */
export const NOT_ITS_FRAME = 'its frame was not encrypted for this block';

/** If the frames fill less than this share of their buffer, they are copied to a buffer of their size. */
const WORTH_KEEPING = 0.75;

/** Packs in place: `blocks` comes from `newBlocks` and is overwritten. */
export function packBatch({ blocks, known, known_present, sealing }: PackTask): PackedBatch {
  const count = blocks.length / BLOCK_BYTES;
  assert(blocks.byteOffset >= count * TAG_BYTES, 'tags have room before the blocks');
  const cipher = sealing && new FrameCipher(sealing.key, sealing.home);
  const kinds = new Uint8Array(count);
  const stored_bytes = new Uint32Array(count);
  const marks = new Uint32Array(count);
  const hashes = new Uint8Array(count * HASH_BYTES);
  const out = new Uint8Array(blocks.buffer);
  let end = 0;
  const append = (bytes: Uint8Array): void => {
    out.set(bytes, end);
    end += bytes.length;
  };
  for (let i = 0; i < count; i++) {
    const block = blocks.subarray(i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES);
    const before = known_present[i] === 1 ? known.subarray(i * HASH_BYTES, (i + 1) * HASH_BYTES) : undefined;
    const packed = packBlock(block, before);
    kinds[i] = packed?.kind ?? UNCHANGED;
    if (!packed) continue;
    hashes.set(packed.hash, i * HASH_BYTES);
    if (packed.kind === FRAME_KIND.zero) continue;
    const began = end;
    if (cipher && sealing) {
      const number = present(sealing.numbers[i], 'a block number');
      marks[i] = sealing.first_counter + i;
      const [sealed, tag] = cipher.seal(number, packed.kind, marks[i] ?? 0, packed.stored);
      append(sealed);
      release(sealed);
      append(tag);
    } else {
      marks[i] = frameCrc(packed.stored);
      append(packed.stored);
    }
    stored_bytes[i] = end - began;
  }
  const frames = out.subarray(0, end);
  if (end >= out.length * WORTH_KEEPING) return { kinds, stored_bytes, marks, hashes, frames, spare: null };
  const alone = new Uint8Array(Buffer.allocUnsafeSlow(end).buffer);
  alone.set(frames);
  return { kinds, stored_bytes, marks, hashes, frames: alone, spare: out };
}

export function unpackBatch({ frames, kinds, stored_bytes, hashes, sealing }: UnpackTask): Unpacked {
  const blocks = new Uint8Array(kinds.length * BLOCK_BYTES);
  const cipher = sealing && new FrameCipher(sealing.key, sealing.home);
  let at = 0;
  for (const [index, kind] of kinds.entries()) {
    const stored = frames.subarray(at, at + (stored_bytes[index] ?? 0));
    at += stored.length;
    const hash = hashes.subarray(index * HASH_BYTES, (index + 1) * HASH_BYTES);
    const out = blocks.subarray(index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES);
    let plain: Uint8Array | undefined = stored;
    if (cipher && sealing && kind !== FRAME_KIND.zero) {
      const [number, mark] = [sealing.numbers[index], sealing.marks[index]];
      plain = cipher.open(present(number, 'a block number'), kind, present(mark, 'a mark'), stored);
      if (!plain) return { ok: false, index, problem: NOT_ITS_FRAME };
    }
    const problem = unpackFrame(kind, plain, hash, out);
    if (plain !== stored) release(plain);
    if (problem !== undefined) return { ok: false, index, problem };
  }
  return { ok: true, blocks };
}
