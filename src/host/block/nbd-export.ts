/** What an NBD server serves: the disk behind a name. */

/** Offsets and lengths in bytes, within `size_bytes`, whole multiples of `min_block_bytes`. */
export interface NbdExport {
  readonly size_bytes: number;
  readonly read_only: boolean;
  /** A power of two from 1 to 65,536 that divides `size_bytes`. */
  readonly min_block_bytes: number;
  /** Resolves with exactly `length` bytes, in a buffer of their own: the server releases it. */
  read?(offset: number, length: number): Promise<Buffer>;
  /** `data` is the server's again once this settles, and released then. */
  write?(offset: number, data: Buffer): Promise<void>;
  /** Makes the range read as zeroes; must be fast whatever its length. Also what a TRIM becomes. */
  writeZeroes?(offset: number, length: number): Promise<void>;
  flush?(): Promise<void>;
}

/** A failure with an NBD error number of its own; anything else thrown is answered EIO. */
export class NbdError extends Error {
  override name = 'NbdError';
  /** As on the wire: the Linux errno numbers. */
  readonly errno: number;

  constructor(errno: number, message: string) {
    super(message);
    this.errno = errno;
  }
}
