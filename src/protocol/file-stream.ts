/**
 * Encodes paths of a guest, and the frames of a request for files between control plane and guest (file-tasks.pl). The
 * host passes the frames on unread. A frame has a length (4 bytes), a type (1 byte) and a payload, as on the stream to
 * an exec.
 *
 *   read     guest: opened · host: range (offset, length: 8 bytes each) · guest: content… · done
 *   write    guest: opened (empty: no such file) · host: content… · commit (version) · guest: done
 *   list     guest: entry… · done            remove   guest: working… · done
 *   move, directory   guest: done
 *
 * `opened` and `entry` have a file's fields. `done` of a write, move or directory has `1` if it is new, then NUL and
 * the fields. `failed` (a code or errno, NUL, a text) may replace any frame, and is the last. A stream without `done`
 * or `failed` was cut off. A guest can send anything: {@link fieldsOf} checks it.
 */
export { MalformedStreamError, StreamFrames, streamFrame } from './exec-types.ts';

import { MalformedStreamError } from './exec-types.ts';

export const FROM_FILES = { opened: 1, content: 2, entry: 3, done: 4, failed: 5, working: 6 } as const;
export const TO_FILES = { range: 1, content: 2, commit: 3 } as const;

export const FILE_TYPES = ['file', 'directory', 'symlink', 'other'] as const;

export interface FileFields {
  readonly type: (typeof FILE_TYPES)[number];
  /** Null: a file without a known size, such as some of /proc. */
  readonly size: number | null;
  readonly mode: string;
  readonly user: string;
  readonly modified_at: Date;
  /** Changes with the contents, the mode and the owner. */
  readonly version: string;
  /** The last name of its path; empty for the root. */
  readonly name: Buffer;
}

const TEXTS =
  /^(file|directory|symlink|other)\0(-1|\d{1,16})\0([0-7]{4})\0([^\0]{1,256})\0(-?\d{1,15})\0(\d{1,9})\0([0-9a-f-]{1,120})\0/;

/** @throws MalformedStreamError */
export function fieldsOf(payload: Buffer): FileFields {
  const found = TEXTS.exec(payload.toString('latin1', 0, 600));
  const [texts = '', type, size, mode = '', user = '', seconds, nanoseconds, version = ''] = found ?? [];
  const name = payload.subarray(texts.length);
  const modified_at = new Date(Number(seconds) * 1_000 + Math.floor(Number(nanoseconds) / 1_000_000));
  const is_sane =
    found !== null && Number.isSafeInteger(Number(size)) && !name.includes(0) && name.length <= 255;
  if (!is_sane) throw new MalformedStreamError('a file has no sensible fields');
  return {
    type: type as FileFields['type'],
    size: Number(size) < 0 ? null : Number(size),
    mode,
    user: Buffer.from(user, 'latin1').toString('utf8'),
    // A guest may set any time; RFC 3339 has years of four digits.
    modified_at: within(modified_at),
    version,
    name,
  };
}

const FIRST = new Date('0001-01-01T00:00:00Z');
const LAST = new Date('9999-12-31T23:59:59.999Z');
function within(time: Date): Date {
  if (Number.isNaN(time.getTime())) return LAST;
  return time < FIRST ? FIRST : time > LAST ? LAST : time;
}

export function rangeBytes(offset: number, length: number): Buffer {
  const bytes = Buffer.alloc(16);
  bytes.writeBigUInt64BE(BigInt(offset));
  bytes.writeBigUInt64BE(BigInt(length), 8);
  return bytes;
}

/** Null: a `%` without two hexadecimal digits. Other characters stand for themselves, in UTF-8. */
export function decodePath(text: string): Buffer | null {
  if (/%(?![0-9A-Fa-f]{2})/.test(text)) return null;
  const parts = text.split(/(%[0-9A-Fa-f]{2})/);
  return Buffer.concat(
    parts.map((part, index) =>
      index % 2 === 1 ? Buffer.of(Number.parseInt(part.slice(1), 16)) : Buffer.from(part, 'utf8'),
    ),
  );
}

/** Everything but unreserved characters and `/` is encoded. */
export function encodePath(bytes: Uint8Array): string {
  return Buffer.from(bytes)
    .toString('latin1')
    .replace(
      /[^A-Za-z0-9._~/-]/g,
      (byte) => `%${byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')}`,
    );
}
