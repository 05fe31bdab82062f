/**
 * Reads, writes and lists files of the guest of a running VM. A path is text, or bytes if it is not UTF-8; `encodePath`
 * percent-encodes it for the API.
 *
 *   const files = berth.files(instance.id);
 *   await files.write('/srv/app.conf', 'port = 80\n', { mode: '0640' });
 *   const text = await (await files.read('/srv/app.conf')).text();
 */
import type { File as FileView, RawBody } from './generated.ts';
import type { CallOptions, Transport } from './transport.ts';

export type FilePath = string | Uint8Array;

/** As the API shows it, with a path that the calls here take. */
export interface FileEntry extends Omit<FileView, 'path'> {
  readonly path: FilePath;
}

export interface ReadOptions extends Pick<CallOptions, 'signal' | 'if_match'> {
  /** The first byte and the one after the last. */
  readonly start?: number | undefined;
  readonly end?: number | undefined;
}

export interface WriteOptions extends Pick<CallOptions, 'signal' | 'if_match'> {
  /** Octal: `0644`. Absent: that of the file that is replaced. */
  readonly mode?: string | undefined;
  readonly user?: string | undefined;
  /** Fail where the file exists. */
  readonly create?: boolean | undefined;
}

export class Files {
  readonly #transport: Transport;
  readonly #id: string;

  /** @param id the instance's */
  constructor(transport: Transport, id: string) {
    this.#transport = transport;
    this.#id = id;
  }

  /** A response, whose body is the content: `text()`, `bytes()`, or the stream `body`. One that breaks off is an error. */
  read(path: FilePath, { start, end, signal, if_match }: ReadOptions = {}): Promise<Response> {
    const range =
      start === undefined && end === undefined
        ? undefined
        : `bytes=${start ?? 0}-${end === undefined ? '' : end - 1}`;
    return this.#transport.send('readFile', this.#of(), {
      ...{ signal, if_match, search: `path=${encodePath(path)}` },
      headers: range === undefined ? {} : { range },
    });
  }

  /** The whole file appears at once, or not at all. */
  async write(path: FilePath, content: RawBody, options: WriteOptions = {}): Promise<FileEntry> {
    const { mode, user, create, signal, if_match } = options;
    const more = new URLSearchParams();
    if (mode !== undefined) more.set('mode', mode);
    if (user !== undefined) more.set('user', user);
    const response = await this.#transport.send(
      'writeFile',
      { ...this.#of(), body: content },
      {
        ...{ signal, if_match, search: `path=${encodePath(path)}${more.size === 0 ? '' : `&${more}`}` },
        headers: create === true ? { 'if-none-match': '*' } : {},
      },
    );
    return entryOf((await response.json()) as FileView);
  }

  /** The entries of a folder, sorted by name. Fetches each page when it is needed. */
  async *list(
    path: FilePath,
    { signal }: Pick<CallOptions, 'signal'> = {},
  ): AsyncGenerator<FileEntry, void, undefined> {
    for (let cursor: string | null = null; ; ) {
      const next: string = cursor === null ? '' : `&cursor=${encodeURIComponent(cursor)}`;
      const search = `path=${encodePath(path)}&limit=200${next}`;
      const response = await this.#transport.send('listFiles', this.#of(), { signal, search });
      const page = (await response.json()) as { data: FileView[]; next_cursor: string | null };
      yield* page.data.map(entryOf);
      cursor = page.next_cursor;
      if (cursor === null) return;
    }
  }

  /** `recursive`: a folder with all that it holds. */
  async remove(
    path: FilePath,
    options: Pick<CallOptions, 'signal'> & { readonly recursive?: boolean } = {},
  ): Promise<void> {
    const { recursive = false, signal } = options;
    const search = `path=${encodePath(path)}${recursive ? '&recursive=true' : ''}`;
    await this.#transport.send('deleteFile', this.#of(), { signal, search });
  }

  /** Replaces a file at `to`. */
  async move(from: FilePath, to: FilePath, options: Pick<CallOptions, 'signal'> = {}): Promise<FileEntry> {
    const body = { from: encodePath(from), to: encodePath(to) };
    return entryOf(await this.#transport.call('moveFile', { path: { id: this.#id }, body }, options));
  }

  /** Makes the folder and those above it; one that is there stays as it is. */
  async mkdir(
    path: FilePath,
    { mode, user, signal }: Pick<WriteOptions, 'mode' | 'user' | 'signal'> = {},
  ): Promise<FileEntry> {
    const body = {
      path: encodePath(path),
      ...(mode === undefined ? {} : { mode }),
      ...(user === undefined ? {} : { user }),
    };
    return entryOf(
      await this.#transport.call('createDirectory', { path: { id: this.#id }, body }, { signal }),
    );
  }

  #of() {
    return { path: { id: this.#id } };
  }
}

function entryOf({ path, ...rest }: FileView): FileEntry {
  return { ...rest, path: decodePath(path) };
}

/** Every byte but unreserved characters and `/` becomes `%` and two digits. */
export function encodePath(path: FilePath): string {
  const bytes = typeof path === 'string' ? new TextEncoder().encode(path) : path;
  let text = '';
  for (const byte of bytes) {
    const character = String.fromCharCode(byte);
    text += /[A-Za-z0-9._~/-]/.test(character)
      ? character
      : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  }
  return text;
}

/** Text where the bytes are UTF-8. */
function decodePath(encoded: string): FilePath {
  const bytes = Uint8Array.from(encoded.match(/%[0-9A-F]{2}|[^%]/g) ?? [], (part) =>
    part.length === 1 ? part.charCodeAt(0) : Number.parseInt(part.slice(1), 16),
  );
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return bytes;
  }
}
