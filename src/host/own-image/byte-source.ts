/** Bytes asked for by number from a stream of chunks of any size; one chunk in memory. */

/** What was given cannot become an image; the message is for whoever gave it. */
export class UnusableImageError extends Error {
  override name = 'UnusableImageError';
}

export class ByteSource {
  readonly #chunks: AsyncIterator<Uint8Array>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** Up to `most` bytes, at least one; null at the end. */
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

  /** Exactly `count` bytes; null when there is none at all. @throws UnusableImageError when it ends within */
  async exactly(count: number): Promise<Buffer | null> {
    const parts: Buffer[] = [];
    for (let missing = count; missing > 0; ) {
      const part = await this.some(missing);
      if (part === null) {
        if (parts.length === 0) return null;
        throw new UnusableImageError('the archive ends in the middle');
      }
      // A copy: the chunk may be a stream's buffer that is used again.
      parts.push(Buffer.from(part));
      missing -= part.length;
    }
    return Buffer.concat(parts);
  }
}
