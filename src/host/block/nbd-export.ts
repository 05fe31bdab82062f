/** What an NBD server serves: the disk behind a name. */

/** Offsets and lengths in bytes, within `size_bytes`, whole multiples of `min_block_bytes`. */
export interface NbdExport {
  readonly size_bytes: number;
  readonly read_only: boolean;
  /** A power of two from 1 to 65,536 that divides `size_bytes`. */
  readonly min_block_bytes: number;
  /** Resolves with exactly `length` bytes, in a buffer of their own: the server releases it. */
  read?(offset: number, length: number): Promise<Buffer>;
  /** Where payloads are read into; absent, or for those it has no room for: into the server's memory. */
  readonly rooms?: PayloadRooms;
  /** `data` is the server's again once this settles, and released then; what lies in a room goes back there. */
  write?(offset: number, data: Buffer): Promise<void>;
  /** Makes the range read as zeroes; must be fast whatever its length. Also what a TRIM becomes. */
  writeZeroes?(offset: number, length: number): Promise<void>;
  flush?(): Promise<void>;
}

/** An export's own memory for payloads. */
export interface PayloadRooms {
  /** Room for a payload of so many bytes; what is in it is anything. */
  take(length: number): Buffer | undefined;
  /** Once the request is answered, or did not come whole; also what `write` has kept. */
  give(room: Buffer): void;
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
