/**
 * The command `berth cp`: copies files and folders between this machine and a guest, one after the other. It uses the
 * API, so it needs no SSH key.
 *
 * - A file appears under its final name only when it is complete, on either side.
 * - File names are bytes, which need not be UTF-8.
 * - A file that cannot be copied is reported and counted, and the next one follows.
 */
import { randomBytes } from 'node:crypto';
import { createReadStream, createWriteStream, type Stats } from 'node:fs';
import { chmod, mkdir, readdir, rename, rm, stat } from 'node:fs/promises';
import { Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { BerthError, type FilePath, type Files } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { EXIT, UsageError } from '../command-error.ts';
import { bytes, bytes as bytesText } from '../table.ts';
import type { Terminal } from '../terminal.ts';

export interface Copying {
  readonly files: Files;
  /** Of the instance, for people. */
  readonly name: string;
  readonly recursive: boolean;
  readonly terminal: Terminal;
  readonly signal: AbortSignal;
}

const PERMISSIONS = 0o777;

class Copier {
  readonly #copying: Copying;
  copied = 0;
  copied_bytes = 0;
  failed = 0;

  constructor(copying: Copying) {
    this.#copying = copying;
  }

  /** `target`: a folder where `into` is set, else the name of the copy. */
  async upload(source: Buffer, target: Buffer, into: boolean): Promise<void> {
    const place = into ? joinPath(target, lastName(source)) : target;
    await this.#try(source, async () => {
      const is = await stat(source);
      if (is.isDirectory()) await this.#uploadFolder(source, place, is);
      else if (is.isFile()) await this.#uploadFile(source, place, is);
      else this.#tell(source, 'is not a regular file');
    });
  }

  async download(source: Buffer, target: Buffer, into: boolean): Promise<void> {
    const place = into ? joinPath(target, lastName(source)) : target;
    await this.#try(source, async () => {
      if (await this.isRemoteFolder(source)) await this.#downloadFolder(source, place, '0755');
      else await this.#downloadFile(source, place);
    });
  }

  /** A folder of the guest, or a link that leads to one. */
  async isRemoteFolder(path: Buffer): Promise<boolean> {
    const { files, signal } = this.#copying;
    try {
      await files.list(path, { signal }).next();
      return true;
    } catch (error) {
      if (error instanceof BerthError && (error.code === 'NOT_FOUND' || isNoFolder(error))) return false;
      throw error;
    }
  }

  async #uploadFolder(source: Buffer, place: Buffer, { mode }: Stats): Promise<void> {
    const { files, recursive, signal } = this.#copying;
    if (!recursive) return this.#tell(source, 'is a folder; copy it with -r');
    await files.mkdir(place, { mode: octal(mode), signal });
    const entries = await readdir(source, { withFileTypes: true, encoding: 'buffer' });
    for (const entry of entries.sort((one, other) => Buffer.compare(one.name, other.name))) {
      const path = joinPath(source, entry.name);
      if (entry.isSymbolicLink() && (await leadsToFolder(path))) this.#tell(path, 'is a link to a folder');
      else await this.upload(path, joinPath(place, entry.name), false);
    }
  }

  async #uploadFile(source: Buffer, place: Buffer, { mode, size }: Stats): Promise<void> {
    const { files, signal } = this.#copying;
    await using progress = this.#progress(source, size);
    const content = createReadStream(source, { highWaterMark: 256 * 1024, signal });
    const counted = content.pipe(progress.count);
    content.once('error', (error) => counted.destroy(error));
    await files.write(place, counted, { mode: octal(mode), signal });
    this.#done(progress.seen);
  }

  async #downloadFolder(source: Buffer, place: Buffer, mode: string): Promise<void> {
    const { files, recursive, signal } = this.#copying;
    if (!recursive) return this.#tell(source, 'is a folder; copy it with -r');
    await mkdir(place, { recursive: true });
    for await (const { path, type, mode: of } of files.list(source, { signal })) {
      const from = bytesOf(path);
      const name = lastName(from);
      // Said by somebody who wants to write beside the folder.
      if (['', '.', '..'].includes(name.toString('latin1'))) {
        this.#tell(from, 'has no name of its own');
        continue;
      }
      const to = joinPath(place, name);
      await this.#try(from, async () => {
        if (type === 'directory') await this.#downloadFolder(from, to, of);
        else if (type === 'other') this.#tell(from, 'is not a regular file');
        else await this.#downloadFile(from, to);
      });
    }
    // At last: a folder may forbid its owner to write.
    await chmod(place, Number.parseInt(mode, 8) & PERMISSIONS);
  }

  async #downloadFile(source: Buffer, place: Buffer): Promise<void> {
    const { files, signal } = this.#copying;
    const response = await files.read(source, { signal });
    const mode = Number.parseInt(response.headers.get('berth-file-mode') ?? '0644', 8) & PERMISSIONS;
    const size = Number(response.headers.get('content-length') ?? Number.NaN);
    await using progress = this.#progress(source, size);
    const partial = Buffer.concat([place, Buffer.from(`.berth-${randomBytes(6).toString('hex')}`)]);
    try {
      const body = response.body === null ? Readable.from([]) : Readable.fromWeb(response.body as never);
      await pipeline(body, progress.count, createWriteStream(partial, { mode: 0o600, flags: 'wx' }), {
        signal,
      });
      await chmod(partial, mode);
      await rename(partial, place);
    } catch (error) {
      await rm(partial, { force: true });
      throw error;
    }
    this.#done(progress.seen);
  }

  #progress(source: Buffer, size: number) {
    const { terminal } = this.#copying;
    const name = lastName(source).toString();
    const line = terminal.progress(name);
    const began = performance.now();
    const progress = {
      seen: 0,
      count: new Transform({
        transform: (chunk: Buffer, _encoding, pass) => {
          progress.seen += chunk.length;
          const rate = bytesText(
            Math.round((progress.seen * 1_000) / Math.max(1, performance.now() - began)),
          );
          const part = size > 0 ? ` ${Math.floor((progress.seen / size) * 100)} %` : '';
          line.say(`${name}${part}, ${bytesText(progress.seen)}, ${rate}/s`);
          pass(null, chunk);
        },
      }),
      [Symbol.asyncDispose]: async () => line.end(),
    };
    return progress;
  }

  #done(seen: number): void {
    this.copied += 1;
    this.copied_bytes += seen;
  }

  #tell(path: Buffer, why: string): void {
    this.failed += 1;
    this.#copying.terminal.warn(`berth: ${path.toString()}: ${why}`);
  }

  async #try(path: Buffer, copy: () => Promise<void>): Promise<void> {
    try {
      await copy();
    } catch (error) {
      this.#copying.signal.throwIfAborted();
      const { code, message } = error as NodeJS.ErrnoException;
      const of_file =
        error instanceof BerthError
          ? error.status < 500 || error.status === 507
          : code?.startsWith('E') === true;
      // What ends every copy ends them all.
      if (!of_file || code === 'VM_NOT_RUNNING' || code === 'FORBIDDEN' || code === 'UNAUTHENTICATED')
        throw error;
      this.#tell(path, message);
    }
  }
}

function isNoFolder({ code, message }: BerthError): boolean {
  return code === 'CONFLICT' && /not a folder/.test(message);
}

async function leadsToFolder(path: Buffer): Promise<boolean> {
  return stat(path).then(
    (is) => is.isDirectory(),
    () => false,
  );
}

function octal(mode: number): string {
  return (mode & PERMISSIONS).toString(8).padStart(4, '0');
}

function bytesOf(path: FilePath): Buffer {
  return Buffer.from(path as Uint8Array);
}

function joinPath(folder: Buffer, name: Buffer): Buffer {
  const separator = folder.at(-1) === SLASH ? '' : '/';
  return Buffer.concat([folder, Buffer.from(separator), name]);
}

const SLASH = '/'.charCodeAt(0);

/** The last name of a path. */
function lastName(path: Buffer): Buffer {
  let end = path.length;
  while (end > 1 && path[end - 1] === SLASH) end -= 1;
  return path.subarray(path.lastIndexOf(SLASH, end - 1) + 1, end);
}

interface Place {
  /** Null: this machine. */
  readonly instance: string | null;
  readonly path: Buffer;
}

/** As in scp, a colon before any slash makes it a guest's. @throws UsageError */
function copyPlaceOf(word: string): Place {
  if (word.includes('\ufffd')) {
    throw new UsageError(
      'a name on the command line is not UTF-8; copy its folder with -r, which keeps every name',
    );
  }
  const colon = word.indexOf(':');
  const slash = word.indexOf('/');
  if (colon < 1 || (slash !== -1 && slash < colon)) return { instance: null, path: Buffer.from(word) };
  const [instance, path] = [word.slice(0, colon), word.slice(colon + 1)];
  if (!path.startsWith('/'))
    throw new UsageError(`a path in a guest begins with /, as in ${instance}:/${path}`);
  return { instance, path: Buffer.from(path) };
}

async function copy(call: Call): Promise<number> {
  const { args, options, session, terminal, signal } = call;
  const places = args.map(copyPlaceOf);
  const target = places.at(-1) as Place;
  const sources = places.slice(0, -1);
  const instances = new Set(sources.map(({ instance }) => instance));
  if (instances.size > 1)
    throw new UsageError('the sources must be in one place: this machine, or one guest');
  const [from = null] = instances;
  if (from !== null && target.instance !== null)
    throw new UsageError('berth cp does not copy from guest to guest; copy to this machine first');
  const instance = from ?? target.instance;
  if (instance === null) throw new UsageError('one side must be in a guest, as in web:/path');
  const { fetchWithoutTimeout } = await import('../guest-connections.ts');
  const berth = session.berth({ fetch: await fetchWithoutTimeout() });
  const { id, name } = await berth.instances.find(instance);
  const copier = new Copier({
    ...{ files: berth.files(id), name, terminal, signal },
    recursive: options.flag('recursive'),
  });
  const into = await isFolder(target, copier);
  if (!into && sources.length > 1)
    throw new UsageError('several files can only be copied into a folder that exists');
  for (const { path } of sources) {
    if (from === null) await copier.upload(path, target.path, into);
    else await copier.download(path, target.path, into);
  }
  const { copied, copied_bytes, failed } = copier;
  const files = copied === 1 ? '1 file' : `${copied} files`;
  if (copied > 0 || failed === 0) {
    terminal.done(`Copied ${files}, ${bytes(copied_bytes)}.`, { files: copied, bytes: copied_bytes, failed });
  }
  return failed === 0 ? EXIT.done : EXIT.failed;
}

async function isFolder({ instance, path }: Place, copier: Copier): Promise<boolean> {
  if (instance !== null) return copier.isRemoteFolder(path);
  return stat(path).then(
    (is) => is.isDirectory(),
    () => false,
  );
}

export const COPY: Command = {
  name: 'cp',
  args: ['SOURCE…', 'TARGET'],
  summary: 'copy files and folders into a guest or out of it, as scp does',
  details:
    'NAME:/path is in the guest of NAME; every other path is on this machine. The VM must run. It needs no SSH key. Permissions are kept, and the copy belongs to root or to you. A copy has its name only once it is whole.',
  example: 'berth cp -r ./site web:/srv',
  options: {
    recursive: { type: 'boolean', short: 'r', help: 'copy folders with all that they hold' },
  },
  run: copy,
};
