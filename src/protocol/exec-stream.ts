/**
 * The frames of a stream to an exec, between control plane and agent: length (4 bytes), type (1 byte), payload.
 *
 *   agent:          attached (offset) · output of stdout or stderr (offset, bytes)… · exit (a ReportedExec as JSON), or end
 *   control plane:  input (bytes) · eof · resize (columns, rows: 2 bytes each) · signal (1 byte) · leave
 *
 * Offsets have 8 bytes. `end` is the end of a reading that does not follow. Without `exit` or `end` the stream was cut off. Output
 * whose offset is beyond what has been read means that the output between them is no longer kept. A reader that goes without
 * `leave` is lost, and may come back.
 */
export const FRAME = {
  input: 0,
  stdout: 1,
  stderr: 2,
  attached: 3,
  exit: 4,
  eof: 5,
  resize: 6,
  signal: 7,
  end: 8,
  leave: 9,
} as const;

const HEADER_BYTES = 5;
const PAYLOAD_MAX = 128 * 1024;

export interface StreamFrame {
  readonly type: number;
  readonly payload: Buffer;
}

export class MalformedStreamError extends Error {
  override name = 'MalformedStreamError';
}

export function streamFrame(type: number, ...payload: readonly Uint8Array[]): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32BE(payload.reduce((bytes, each) => bytes + each.length, 0));
  header.writeUInt8(type, 4);
  return Buffer.concat([header, ...payload]);
}

export function offsetBytes(offset: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(offset));
  return bytes;
}

/** @throws MalformedStreamError */
export function readOffset(payload: Buffer): { readonly offset: number; readonly rest: Buffer } {
  if (payload.length < 8) throw new MalformedStreamError('a frame has no offset');
  const offset = Number(payload.readBigUInt64BE());
  if (!Number.isSafeInteger(offset)) throw new MalformedStreamError('an offset is too large');
  return { offset, rest: payload.subarray(8) };
}

/** Splits a byte stream into frames. At most one frame and one read are in memory. */
export class StreamFrames {
  #held: Buffer = Buffer.alloc(0);

  /** The frames that `chunk` completes. @throws MalformedStreamError */
  push(chunk: Buffer): StreamFrame[] {
    this.#held = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
    const found: StreamFrame[] = [];
    for (;;) {
      const held = this.#held;
      if (held.length < HEADER_BYTES) return found;
      const length = held.readUInt32BE();
      if (length > PAYLOAD_MAX) throw new MalformedStreamError('a frame is too large');
      if (held.length < HEADER_BYTES + length) return found;
      found.push({ type: held.readUInt8(4), payload: held.subarray(HEADER_BYTES, HEADER_BYTES + length) });
      this.#held = held.subarray(HEADER_BYTES + length);
    }
  }
}
