/**
 * Compresses block after block with zstd at level 1, in one context, into one buffer.
 *
 * `zstdCompressSync` makes a stream, a context and a buffer for each call. That costs 25 µs a block; compression itself
 * takes 12 µs (noise) to 60 µs (system files). The interface used instead is below Node's documented one (npm uses it too),
 * so the constructor tests it and falls back to `zstdCompressSync` when the results differ.
 */
import { constants, createZstdCompress, zstdCompressSync } from 'node:zlib';
import { BLOCK_BYTES } from './segment-format.ts';

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
