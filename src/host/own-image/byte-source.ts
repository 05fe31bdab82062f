/** Reads a given number of bytes from a stream of chunks of any size, with one chunk in memory. */

/** The input cannot become an image. The message is for the user. */
export class UnusableImageError extends Error {
  override name = 'UnusableImageError';
}

export class ByteSource {
  readonly #chunks: AsyncIterator<Uint8Array>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** From 1 to `most` bytes; null at the end. */
  async some(most: number): Promise<Buffer | null> {
    while (this.#rest.length === 0) {
      const next = await this.#chunks.next();
      if (next.done === true) return null;
      this.#rest = Buffer.from(next.value.buffer, next.value.byteOffset, next.value.byteLength);
    }
    const taken = this.#rest.subarray(0, most);
    this.#rest = this.#rest.subarray(taken.length);
    return taken;
  }

  /** Exactly `count` bytes; null at the end. @throws UnusableImageError when the stream ends within them */
  async exactly(count: number): Promise<Buffer | null> {
    const parts: Buffer[] = [];
    for (let missing = count; missing > 0; ) {
      const part = await this.some(missing);
      if (part === null) {
        if (parts.length === 0) return null;
        throw new UnusableImageError('the archive ends in the middle');
      }
      // A copy, because the stream may reuse the chunk's buffer.
      parts.push(Buffer.from(part));
      missing -= part.length;
    }
    return Buffer.concat(parts);
  }
}
