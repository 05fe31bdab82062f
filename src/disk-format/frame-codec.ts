/**
 * Packs a block into a frame, the form in which a segment stores it, and unpacks it again. Packing detects zeroes,
 * hashes the block and compresses it with zstd at level 1. A block that does not shrink is stored raw. Unpacking
 * verifies the hash. Synchronous and without I/O, for worker threads (compress-worker.ts).
 */
import { hash as hashOnce } from 'node:crypto';
import { constants, crc32, createZstdCompress, zstdCompressSync, zstdDecompressSync } from 'node:zlib';
import { assert } from '../shared/assert.ts';
import { messageOf } from '../shared/errors.ts';
import { release } from '../shared/release.ts';
import { BLOCK_BYTES, FRAME_KIND, type FrameKind, HASH_BYTES } from './segment-format.ts';

/** More than zstd can make of a block, so output is one chunk: chunks of 16 KiB cost a quarter to two thirds of the speed. */
export const ONE_CHUNK_BYTES = BLOCK_BYTES + 1_024;
const OPTIONS = {
  chunkSize: ONE_CHUNK_BYTES,
  params: { [constants.ZSTD_c_compressionLevel]: 1 },
};

/** The handle below a Node stream. `_writeState`: remaining bytes of output and of input. */
export interface Below {
  readonly _handle: {
    writeSync(
      flush: number,
      input: Uint8Array,
      input_at: number,
      input_bytes: number,
      output: Uint8Array,
      output_at: number,
      output_bytes: number,
    ): void;
  };
  readonly _writeState: Uint32Array;
  readonly destroyed: boolean;
}

/**
 * Compresses block after block with zstd at level 1, in one context, into one buffer.
 *
 * `zstdCompressSync` makes a stream, a context and a buffer for each call. That costs 25 µs a block; compression itself
 * takes 12 µs (noise) to 60 µs (system files). The interface used instead is below Node's documented one (npm uses it too),
 * so the constructor tests it and falls back to `zstdCompressSync` when the results differ.
 */
export class BlockCompressor {
  readonly #out = Buffer.allocUnsafeSlow(ONE_CHUNK_BYTES);
  #below: Below | null;

  constructor(below: Below | null = opened()) {
    this.#below = below;
    // Twice: the second frame must not depend on the first.
    const sample = Buffer.alloc(BLOCK_BYTES);
    for (let i = 0; i < BLOCK_BYTES; i++) sample[i] = (i * i + (i >> 5)) & (i % 7 === 0 ? 0xff : 0x3f);
    const expected = compressOnce(sample);
    for (let i = 0; i < 2; i++) if (!this.#kept(sample)?.equals(expected)) this.#below = null;
  }

  /** One zstd frame, valid until the next call. */
  compress(block: Uint8Array): Uint8Array {
    return this.#kept(block) ?? compressOnce(block);
  }

  #kept(block: Uint8Array): Buffer | undefined {
    const below = this.#below;
    if (!below) return undefined;
    try {
      below._handle.writeSync(constants.ZSTD_e_end, block, 0, block.length, this.#out, 0, ONE_CHUNK_BYTES);
      const [output_left = 0, input_left] = below._writeState;
      const whole = !below.destroyed && input_left === 0 && output_left > 0;
      if (whole) return this.#out.subarray(0, ONE_CHUNK_BYTES - output_left);
    } catch {
      // This Node has another signature.
    }
    this.#below = null;
    return undefined;
  }
}

function opened(): Below | null {
  const stream = createZstdCompress(OPTIONS);
  // `compress` detects an error by `destroyed`.
  stream.on('error', () => undefined);
  const below = stream as unknown as Partial<Below>;
  const as_expected =
    typeof below._handle?.writeSync === 'function' &&
    below._writeState instanceof Uint32Array &&
    typeof below.destroyed === 'boolean';
  return as_expected ? (below as Below) : null;
}

function compressOnce(block: Uint8Array): Buffer {
  return zstdCompressSync(block, OPTIONS);
}

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
