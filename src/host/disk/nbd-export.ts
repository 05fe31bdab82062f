/** The interface of a disk that the NBD server serves under a name. */

/** Offsets and lengths are in bytes, within `size_bytes`, and multiples of `min_block_bytes`. */
export interface NbdExport {
  readonly size_bytes: number;
  readonly read_only: boolean;
  /** A power of two from 1 to 65,536 that divides `size_bytes`. */
  readonly min_block_bytes: number;
  /** Resolves with exactly `length` bytes in a new buffer, which the server releases. */
  read?(offset: number, length: number): Promise<Buffer>;
  /** Buffers for payloads. Without one, the server uses its own. */
  readonly rooms?: PayloadRooms;
  /** Once this settles, the server releases `data`, or gives it back to `rooms`. */
  write?(offset: number, data: Buffer): Promise<void>;
  /** Makes the range read as zeroes, fast for any length. Also used for TRIM. */
  writeZeroes?(offset: number, length: number): Promise<void>;
  flush?(): Promise<void>;
}

/** An export's own buffers for payloads. */
export interface PayloadRooms {
  /** A buffer of `length` bytes with arbitrary content; undefined: none is free. */
  take(length: number): Buffer | undefined;
  /** Called with each buffer after its request, also for one that `write` has kept. */
  give(room: Buffer): void;
}

/** A failure with an NBD error number. The reply to any other error is EIO. */
export class NbdError extends Error {
  override name = 'NbdError';
  /** A Linux errno number, as on the wire. */
  readonly errno: number;

  constructor(errno: number, message: string) {
    super(message);
    this.errno = errno;
  }
}
