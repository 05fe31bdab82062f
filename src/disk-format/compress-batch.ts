/** What a compression worker does with one batch. Pure, so that it can also be run in place. */
import { present } from '../lib/assert.ts';
import { release } from '../lib/release.ts';
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

/** Said of a frame that does not open. */
export const NOT_ITS_FRAME = 'its frame is not what was encrypted for this block';

export function packBatch({ blocks, known, known_present, sealing }: PackTask): PackedBatch {
  const count = blocks.length / BLOCK_BYTES;
  const cipher = sealing && new FrameCipher(sealing.key, sealing.home);
  const kinds = new Uint8Array(count);
  const stored_bytes = new Uint32Array(count);
  const marks = new Uint32Array(count);
  const hashes = new Uint8Array(count * HASH_BYTES);
  const parts: Uint8Array[] = [];
  for (let i = 0; i < count; i++) {
    const block = blocks.subarray(i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES);
    const before = known_present[i] === 1 ? known.subarray(i * HASH_BYTES, (i + 1) * HASH_BYTES) : undefined;
    const packed = packBlock(block, before);
    kinds[i] = packed?.kind ?? UNCHANGED;
    if (!packed) continue;
    hashes.set(packed.hash, i * HASH_BYTES);
    if (packed.kind === FRAME_KIND.zero) continue;
    stored_bytes[i] = packed.stored.length;
    if (cipher && sealing) {
      marks[i] = sealing.first_counter + i;
      const number = present(sealing.numbers[i], 'a block number');
      stored_bytes[i] = packed.stored.length + TAG_BYTES;
      parts.push(...cipher.seal(number, packed.kind, marks[i] ?? 0, packed.stored));
      if (packed.kind === FRAME_KIND.zstd) release(packed.stored);
    } else {
      marks[i] = frameCrc(packed.stored);
      parts.push(packed.stored);
    }
  }
  const frames = joined(parts);
  for (const part of parts) if (part.buffer !== blocks.buffer) release(part);
  return { kinds, stored_bytes, marks, hashes, frames };
}

function joined(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
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
