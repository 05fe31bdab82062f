/**
 * Streams the entries of a tar archive (POSIX ustar and pax, with GNU's long names and large numbers). It checks the form of
 * entries only; `image-tree.ts` checks their paths.
 */
import { ByteSource, UnusableImageError } from './byte-source.ts';

const BLOCK = 512;
const EXTENSION_MAX_BYTES = 1024 * 1024;
const PIECE_BYTES = 256 * 1024;

export type TarKind = 'file' | 'hard link' | 'symlink' | 'device' | 'folder' | 'fifo';

export interface TarEntry {
  readonly kind: TarKind;
  readonly path: string;
  /** The target of a link. */
  readonly target: string;
  readonly size_bytes: number;
  /** Permissions, set-id bits and the sticky bit. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** Seconds. */
  readonly mtime: number;
  /** The content of a file. Unread content is skipped. */
  readonly body: () => AsyncGenerator<Buffer>;
}

const KINDS: Readonly<Record<string, TarKind>> = {
  '0': 'file',
  '\0': 'file',
  '7': 'file',
  '1': 'hard link',
  '2': 'symlink',
  '3': 'device',
  '4': 'device',
  '5': 'folder',
  '6': 'fifo',
};

/** @throws UnusableImageError */
export async function* readTar(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<TarEntry> {
  const source = new ByteSource(chunks);
  const common: Record<string, string> = {};
  let own: Record<string, string> = {};
  for (;;) {
    const header = await source.exactly(BLOCK);
    // Two blocks of zeroes end an archive, but some programs omit them.
    if (header === null || header.every((byte) => byte === 0)) return;
    checkSum(header);
    const type = String.fromCharCode(header[156] ?? 0);
    const size = numberIn(header, 124, 12);
    if (type === 'x' || type === 'g') {
      Object.assign(type === 'g' ? common : own, paxRecords(await extension(source, size)));
      continue;
    }
    if (type === 'L' || type === 'K') {
      own[type === 'L' ? 'path' : 'linkpath'] = untilZero(await extension(source, size));
      continue;
    }
    const kind = KINDS[type];
    const said = { ...common, ...own };
    own = {};
    if (type === 'S' || Object.keys(said).some((key) => key.startsWith('GNU.sparse'))) {
      throw new UnusableImageError('the archive has sparse files; make it without --sparse');
    }
    if (kind === undefined) {
      throw new UnusableImageError(`the archive has an entry of the unknown type ${JSON.stringify(type)}`);
    }
    yield* entryOf(source, header, kind, said, size);
  }
}

async function* entryOf(
  source: ByteSource,
  header: Buffer,
  kind: TarKind,
  said: Record<string, string>,
  header_size: number,
): AsyncGenerator<TarEntry> {
  const size = said['size'] === undefined ? header_size : wholeNumber(said['size']);
  // Links and folders have no content, even when their header has a size.
  const size_bytes = kind === 'file' ? size : 0;
  let left = size_bytes;
  const body = async function* (): AsyncGenerator<Buffer> {
    while (left > 0) {
      const piece = await source.some(Math.min(left, PIECE_BYTES));
      if (piece === null) throw new UnusableImageError('the archive ends in the middle');
      left -= piece.length;
      yield piece;
    }
  };
  // GNU's format has the magic 'ustar  ', and times in this field.
  const prefix =
    header.toString('latin1', 257, 263) === 'ustar\0' ? untilZero(header.subarray(345, 500)) : '';
  const name = untilZero(header.subarray(0, 100));
  yield {
    kind,
    path: said['path'] ?? (prefix === '' ? name : `${prefix}/${name}`),
    target: said['linkpath'] ?? untilZero(header.subarray(157, 257)),
    size_bytes,
    mode: numberIn(header, 100, 8) & 0o7777,
    uid: idOf(said['uid'], numberIn(header, 108, 8)),
    gid: idOf(said['gid'], numberIn(header, 116, 8)),
    mtime: Math.max(0, Math.floor(Number(said['mtime'] ?? timeIn(header)) || 0)),
    body,
  };
  for await (const _ of body());
  const padding = (BLOCK - (size_bytes % BLOCK)) % BLOCK;
  if (padding > 0) await source.exactly(padding);
}

function checkSum(header: Buffer): void {
  let sum = 8 * 32;
  for (const [at, byte] of header.entries()) if (at < 148 || at >= 156) sum += byte;
  const said = header
    .toString('latin1', 148, 156)
    .replace(/[\0 ]+$/, '')
    .trim();
  if (!/^[0-7]+$/.test(said) || Number.parseInt(said, 8) !== sum)
    throw new UnusableImageError('this is not a tar archive, or it is damaged');
}

/** Octal digits, or GNU's base 256 if the highest bit is set. */
function numberIn(header: Buffer, at: number, length: number): number {
  const field = header.subarray(at, at + length);
  if (((field[0] ?? 0) & 0x80) !== 0) {
    const digits = [(field[0] ?? 0) & 0x7f, ...field.subarray(1)];
    return bounded(digits.reduce((value, digit) => value * 256 + digit, 0));
  }
  const text = field
    .toString('latin1')
    .replace(/[\0 ]+$/, '')
    .trim();
  if (!/^[0-7]*$/.test(text)) throw new UnusableImageError('the archive has an invalid number');
  return bounded(Number.parseInt(text || '0', 8));
}

/** A time before 1970 is a negative number in base 256, with the second bit as its sign. */
function timeIn(header: Buffer): number {
  return ((header[136] ?? 0) & 0xc0) === 0xc0 ? 0 : numberIn(header, 136, 12);
}

function bounded(value: number): number {
  if (!Number.isSafeInteger(value))
    throw new UnusableImageError('the archive has a number that is too large');
  return value;
}

function wholeNumber(text: string): number {
  if (!/^[0-9]{1,15}$/.test(text)) throw new UnusableImageError('the archive has an invalid number');
  return Number(text);
}

/** An id that chown(2) accepts. */
function idOf(said: string | undefined, in_header: number): number {
  const id = said === undefined ? in_header : wholeNumber(said);
  if (id >= 2 ** 32 - 1) throw new UnusableImageError(`the archive has the invalid owner ${id}`);
  return id;
}

async function extension(source: ByteSource, size: number): Promise<Buffer> {
  if (size > EXTENSION_MAX_BYTES) throw new UnusableImageError('the archive has a header of over 1 MiB');
  const padded = Math.ceil(size / BLOCK) * BLOCK;
  const body = padded === 0 ? Buffer.alloc(0) : await source.exactly(padded);
  if (body === null) throw new UnusableImageError('the archive ends in the middle');
  return body.subarray(0, size);
}

/** `<length> <key>=<value>\n`, where the length counts the whole record (pax(1)). */
function paxRecords(bytes: Buffer): Record<string, string> {
  const records: Record<string, string> = {};
  for (let at = 0; at < bytes.length; ) {
    const space = bytes.indexOf(0x20, at);
    const length = space === -1 ? 0 : Number(bytes.toString('latin1', at, space));
    const equals = bytes.indexOf(0x3d, space);
    const end = at + length;
    if (!Number.isInteger(length) || equals === -1 || equals >= end || end > bytes.length) {
      throw new UnusableImageError('the archive has a header that cannot be read');
    }
    const key = bytes.toString('utf8', space + 1, equals);
    if (/^(path|linkpath|size|uid|gid|mtime|GNU\.sparse.*)$/.test(key)) {
      records[key] = bytes.toString('utf8', equals + 1, end - 1);
    }
    at = end;
  }
  return records;
}

function untilZero(bytes: Buffer): string {
  const end = bytes.indexOf(0);
  return bytes.toString('utf8', 0, end === -1 ? bytes.length : end);
}
