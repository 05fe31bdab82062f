/**
 * Streams the entries of a tar archive, which `tar-stream` reads: POSIX ustar and pax, with GNU's long names and large
 * numbers. It checks that each entry can become a file here; image-tree.ts checks the paths. If the archive is at
 * fault, the error's message is for the user. An error of reading the bytes is passed on as it is.
 */
import { Readable } from 'node:stream';
import { extract, type Header } from 'tar-stream';

/** The input cannot become an image. The message is for the user. */
export class UnusableImageError extends Error {
  override name = 'UnusableImageError';
}

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

const KINDS: Readonly<Record<Header['type'], TarKind>> = {
  file: 'file',
  'contiguous-file': 'file',
  link: 'hard link',
  symlink: 'symlink',
  'character-device': 'device',
  'block-device': 'device',
  directory: 'folder',
  fifo: 'fifo',
};

const OPTIONS = {
  // Of before 1988, without a magic number. The checksum still has to be right.
  allowUnknownFormat: true,
  highWaterMark: 256 * 1024,
};

/** Reads `chunks` to their end, past the archive's own. @throws UnusableImageError, and what `chunks` throws */
export async function* readTar(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<TarEntry> {
  const archive = extract(OPTIONS);
  const bytes = Readable.from(chunks, { objectMode: false });
  let unreadable: unknown;
  bytes.once('error', (error) => {
    unreadable = error;
    archive.destroy(error);
  });
  archive.once('close', () => bytes.destroy());
  bytes.pipe(archive);
  try {
    for await (const source of archive) {
      yield entryOf(source.header, async function* () {
        try {
          yield* source as AsyncIterable<Buffer>;
        } catch (cause) {
          // The library does not say why content ends: the bytes do.
          throw unreadable ?? new UnusableImageError('the archive ends in the middle', { cause });
        }
      });
      source.resume();
    }
  } catch (error) {
    throw unreadable ?? forUser(error);
  } finally {
    bytes.destroy();
  }
}

function entryOf(header: Header, body: TarEntry['body']): TarEntry {
  const extended = (header.pax ?? {}) as Readonly<Record<string, string>>;
  const kind: TarKind | undefined = KINDS[header.type];
  if (kind === undefined || Object.keys(extended).some((key) => key.startsWith('GNU.sparse'))) {
    throw new UnusableImageError(
      'the archive has sparse files, or entries of an unknown type; make it without --sparse',
    );
  }
  return {
    kind,
    path: header.name,
    target: header.linkname ?? '',
    size_bytes: kind === 'file' ? header.size : 0,
    mode: wholeNumber(header.mode) & 0o7777,
    uid: ownerIn(extended['uid'] ?? header.uid),
    gid: ownerIn(extended['gid'] ?? header.gid),
    // Times before 1970, and what is no time, become 0.
    mtime: Math.max(0, Math.floor(Number(extended['mtime'] ?? header.mtime.getTime() / 1_000)) || 0),
    body,
  };
}

/** An id that chown(2) accepts. */
function ownerIn(said: string | number): number {
  const id = wholeNumber(said === '' ? Number.NaN : Number(said));
  if (id >= 2 ** 32 - 1) throw new UnusableImageError(`the archive has the invalid owner ${id}`);
  return id;
}

function wholeNumber(value: number): number {
  if (!Number.isSafeInteger(value) || value < 0)
    throw new UnusableImageError('the archive has an invalid number');
  return value;
}

function forUser(error: unknown): unknown {
  if (error instanceof UnusableImageError || !(error instanceof Error)) return error;
  const words: Readonly<Record<string, string>> = {
    'Unexpected end of data': 'the archive ends in the middle',
    'Header exceeds max size': 'the archive has a header of over 4 MiB',
  };
  return new UnusableImageError(words[error.message] ?? 'this is not a tar archive, or it is damaged', {
    cause: error,
  });
}
