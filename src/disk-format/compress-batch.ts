/** What a compression worker does with one batch. Pure, so that it can also be run in place. */
import {
  type PackedBatch,
  type PackTask,
  UNCHANGED,
  type Unpacked,
  type UnpackTask,
} from './compress-pool.ts';
import { frameCrc, packBlock, unpackFrame } from './frame-codec.ts';
import { BLOCK_BYTES, FRAME_KIND, HASH_BYTES } from './segment-format.ts';

export function packBatch({ blocks, known, known_present }: PackTask): PackedBatch {
  const count = blocks.length / BLOCK_BYTES;
  const kinds = new Uint8Array(count);
  const stored_bytes = new Uint32Array(count);
  const crcs = new Uint32Array(count);
  const hashes = new Uint8Array(count * HASH_BYTES);
  const parts: Uint8Array[] = [];
  let total = 0;
  for (let i = 0; i < count; i++) {
    const block = blocks.subarray(i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES);
    const before = known_present[i] === 1 ? known.subarray(i * HASH_BYTES, (i + 1) * HASH_BYTES) : undefined;
    const packed = packBlock(block, before);
    kinds[i] = packed?.kind ?? UNCHANGED;
    if (!packed) continue;
    hashes.set(packed.hash, i * HASH_BYTES);
    stored_bytes[i] = packed.stored.length;
    crcs[i] = packed.kind === FRAME_KIND.zero ? 0 : frameCrc(packed.stored);
    parts.push(packed.stored);
    total += packed.stored.length;
  }
  const frames = new Uint8Array(total);
  let at = 0;
  for (const part of parts) {
    frames.set(part, at);
    at += part.length;
  }
  return { kinds, stored_bytes, crcs, hashes, frames };
}

export function unpackBatch({ frames, kinds, stored_bytes, hashes }: UnpackTask): Unpacked {
  const blocks = new Uint8Array(kinds.length * BLOCK_BYTES);
  let at = 0;
  for (const [index, kind] of kinds.entries()) {
    const stored = frames.subarray(at, at + (stored_bytes[index] ?? 0));
    at += stored.length;
    const hash = hashes.subarray(index * HASH_BYTES, (index + 1) * HASH_BYTES);
    const out = blocks.subarray(index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES);
    const problem = unpackFrame(kind, stored, hash, out);
    if (problem !== undefined) return { ok: false, index, problem };
  }
  return { ok: true, blocks };
}
