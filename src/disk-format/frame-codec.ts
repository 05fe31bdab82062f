/**
 * Packs a block into a frame and back: zero detection, hash, zstd at level 1, or raw when that is not smaller.
 * Pure and synchronous, for worker threads (`compress-worker.ts`).
 */
import { hash as hashOnce } from 'node:crypto';
import { crc32, zstdDecompressSync } from 'node:zlib';
import { assert } from '../shared/assert.ts';
import { messageOf } from '../shared/errors.ts';
import { release } from '../shared/release.ts';
import { BlockCompressor, ONE_CHUNK_BYTES } from './block-compressor.ts';
import { BLOCK_BYTES, FRAME_KIND, type FrameKind, HASH_BYTES } from './segment-format.ts';

const ZERO_BLOCK = Buffer.alloc(BLOCK_BYTES);
const DECOMPRESS = { chunkSize: ONE_CHUNK_BYTES, maxOutputLength: BLOCK_BYTES };
const NOTHING = new Uint8Array(0);
let compressor: BlockCompressor | undefined;

/** First 128 bits of the SHA-256. */
export function hashBlock(block: Uint8Array): Uint8Array {
  return hashOnce('sha256', block, 'buffer').subarray(0, HASH_BYTES);
}

export const ZERO_HASH: Uint8Array = hashBlock(ZERO_BLOCK);

export function isZeroBlock(block: Uint8Array): boolean {
  return ZERO_BLOCK.equals(block);
}

export interface PackedFrame {
  readonly kind: FrameKind;
  /** A raw frame is the block itself, not a copy. Other frames are valid until the next block is packed. */
  readonly stored: Uint8Array;
  readonly hash: Uint8Array;
}

/**
 * Packs one block of {@link BLOCK_BYTES}. Undefined when its hash is `known`: it is unchanged.
 */
export function packBlock(block: Uint8Array, known: Uint8Array | undefined): PackedFrame | undefined {
  assert(block.length === BLOCK_BYTES, 'a block is whole');
  const zero = isZeroBlock(block);
  const hash = zero ? ZERO_HASH : hashBlock(block);
  if (known && Buffer.compare(hash, known) === 0) return undefined;
  if (zero) return { kind: FRAME_KIND.zero, stored: NOTHING, hash };
  compressor ??= new BlockCompressor();
  const compressed = compressor.compress(block);
  if (compressed.length < BLOCK_BYTES) return { kind: FRAME_KIND.zstd, stored: compressed, hash };
  return { kind: FRAME_KIND.raw, stored: block, hash };
}

/**
 * Unpacks one frame into `out` (a whole block) and verifies its hash. Returns the reason if it is corrupt; the content of
 * `out` is then undefined.
 */
export function unpackFrame(
  kind: FrameKind,
  stored: Uint8Array,
  hash: Uint8Array,
  out: Uint8Array,
): string | undefined {
  assert(out.length === BLOCK_BYTES, 'a block is whole');
  if (kind === FRAME_KIND.zero) {
    out.fill(0);
    return Buffer.compare(hash, ZERO_HASH) === 0 ? undefined : 'is marked zero, but its hash is another';
  }
  let data: Uint8Array = stored;
  if (kind === FRAME_KIND.zstd) {
    try {
      data = zstdDecompressSync(stored, DECOMPRESS);
    } catch (error) {
      return `its frame cannot be decompressed (${messageOf(error)})`;
    }
  }
  if (data.length !== BLOCK_BYTES) return `unpacks to ${data.length} bytes`;
  if (Buffer.compare(hashBlock(data), hash) !== 0) return 'its content does not match its hash';
  out.set(data);
  if (data !== stored) release(data);
  return undefined;
}

/** The CRC-32 of stored bytes, as a directory records it. */
export function frameCrc(stored: Uint8Array): number {
  return crc32(stored);
}
