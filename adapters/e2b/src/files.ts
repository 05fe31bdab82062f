/**
 * Implements E2B's two ways to a sandbox's files with Berth's API.
 *
 * - `/files` reads and writes contents, as streams. A request with a form, which may have several files, is held in
 *   memory.
 * - The service `filesystem.Filesystem` lists, makes, moves and removes files, by commands in the guest.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { posix } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import type { Berth, RawBody, VmHandle } from '../../../client/src/berth.ts';
import { Failure, type FailureCode } from './failures.ts';
import { partsOfBody } from './request-body.ts';
import { guestPath } from './sandbox.ts';

/** Of a form, whose files are known when all of it was read. */
export const MAX_FORM_BYTES = 64 * 1024 * 1024;
const MAX_FILES = 1_000;

export interface FilePlace {
  readonly berth: Berth;
  readonly id: string;
  readonly user: string;
  readonly path: string;
}

export async function downloadFile(place: FilePlace, response: ServerResponse): Promise<void> {
  const { berth, id, user, path } = place;
  const found = await berth.files(id).read(guestPath(user, path));
  const length = found.headers.get('content-length');
  response.writeHead(200, {
    'content-type': 'application/octet-stream',
    ...(length === null ? {} : { 'content-length': length }),
  });
  if (found.body) await pipeline(Readable.fromWeb(found.body as never), response);
  else response.end();
}

export const isForm = ({ headers }: IncomingMessage) =>
  headers['content-type']?.startsWith('multipart/form-data') === true;

/** A form holds several files. */
export async function uploadFiles(place: FilePlace, request: IncomingMessage) {
  if (!isForm(request)) return [await uploadStream(place, request)];
  const written = [];
  for (const file of await filesOf(request))
    written.push(await write(place, place.path || file.name, new Uint8Array(await file.arrayBuffer())));
  return written;
}

async function write({ berth, id, user }: FilePlace, path: string, content: RawBody) {
  const full = guestPath(user, path);
  await berth.files(id).write(full, content, { user });
  return { name: posix.basename(full), path: full, type: 'file' };
}

async function uploadStream(place: FilePlace, request: IncomingMessage) {
  // A failure must not end the request, which would end its connection before the answer.
  if (request.headers['content-encoding'] !== 'gzip')
    return write(place, place.path, request.iterator({ destroyOnReturn: false }));
  const unpacked = request.pipe(createGunzip());
  request.once('close', () => request.complete || unpacked.destroy(new Error('the request broke off')));
  try {
    return await write(place, place.path, unpacked);
  } catch (cause) {
    const { code } = (unpacked.errored ?? {}) as NodeJS.ErrnoException;
    if (code?.startsWith('Z_') !== true) throw cause;
    throw new Failure('invalid_argument', 'The body is not gzip.', { cause });
  } finally {
    unpacked.destroy();
  }
}

async function filesOf(request: IncomingMessage): Promise<File[]> {
  const headers = { 'content-type': request.headers['content-type'] ?? '' };
  const body = ReadableStream.from(partsOfBody(request, MAX_FORM_BYTES));
  const form = await new Response(body, { headers }).formData().catch((cause) => {
    if (cause instanceof Failure) throw cause;
    throw new Failure('invalid_argument', 'The body is not multipart/form-data.', { cause });
  });
  const files = form.getAll('file').filter((part) => typeof part !== 'string');
  if (files.length > MAX_FILES)
    throw new Failure('invalid_argument', `A request can write at most ${MAX_FILES} files.`);
  return files;
}

const MAX_DEPTH = 64;
const FIELDS = 8;
/** Owner, group and the like of a file, each ended by a NUL, which no name has. */
const FORMAT = ['%y', '%s', '%M', '%m', '%u', '%g', '%T@', '%l', '%p'].map((each) => `${each}\\0`).join('');
const FIELD_COUNT = FIELDS + 1;
/** Exit codes of the scripts below. */
const CODES: Readonly<Record<number, FailureCode>> = {
  44: 'not_found',
  49: 'already_exists',
  40: 'invalid_argument',
};
const EXISTS = '{ [ -e "$1" ] || [ -L "$1" ]; }';
const MISSING = `${EXISTS} || { echo "$1 does not exist" >&2; exit 44; }`;
const SCRIPTS = {
  stat: `${MISSING}; find "$1" -maxdepth 0 -printf "$F"`,
  list: `${MISSING}; [ -d "$1" ] || { echo "$1 is not a folder" >&2; exit 40; }
    find -H "$1" -mindepth 1 -maxdepth "$2" -printf "$F"`,
  make: `if [ -d "$1" ]; then echo "$1 exists already" >&2; exit 49; fi
    if ${EXISTS}; then echo "$1 is not a folder" >&2; exit 40; fi
    mkdir -p -- "$1" && find "$1" -maxdepth 0 -printf "$F"`,
  move: `${MISSING}; mkdir -p -- "$(dirname -- "$2")" && mv -T -- "$1" "$2" && find "$2" -maxdepth 0 -printf "$F"`,
  remove: 'rm -rf -- "$1"',
} as const;
const TYPES: Readonly<Record<string, string>> = {
  f: 'FILE_TYPE_FILE',
  d: 'FILE_TYPE_DIRECTORY',
  l: 'FILE_TYPE_SYMLINK',
};

async function run(vm: VmHandle, user: string, verb: keyof typeof SCRIPTS, ...words: string[]) {
  const command = ['sh', '-c', SCRIPTS[verb], 'sh', ...words];
  const options = { user, cwd: '/', env: { F: FORMAT, LC_ALL: 'C.UTF-8' } };
  const { exit_code, stdout, stderr } = await vm.exec(command, options);
  if (exit_code === 0) return entriesOf(stdout);
  const is_denied = /permission denied/i.test(stderr);
  const code = CODES[exit_code ?? 0] ?? (is_denied ? 'permission_denied' : 'internal');
  throw new Failure(code, stderr.trim() || `${verb} failed`);
}

/** What `find` has printed. */
export function entriesOf(printed: string) {
  const fields = printed.split('\0');
  const entries = [];
  for (let at = 0; at + FIELD_COUNT < fields.length + 1 && fields[at] !== ''; at += FIELD_COUNT) {
    const [type = '', size = '', permissions, mode = '', owner, group, time = '', target, path = ''] =
      fields.slice(at);
    entries.push({
      name: path.slice(path.lastIndexOf('/') + 1),
      type: TYPES[type] ?? 'FILE_TYPE_UNSPECIFIED',
      path,
      size,
      mode: Number.parseInt(mode, 8),
      permissions,
      owner,
      group,
      modifiedTime: new Date(Number(time) * 1_000).toISOString(),
      ...(target === '' ? {} : { symlinkTarget: target }),
    });
  }
  return entries;
}

interface PathRequest {
  readonly path?: string;
  readonly depth?: number;
  readonly source?: string;
  readonly destination?: string;
}
type Method = (vm: VmHandle, user: string, request: PathRequest) => Promise<unknown>;

const one = async (entries: ReturnType<typeof run>) => ({ entry: (await entries)[0] });

/**
 * E2B's service `filesystem.Filesystem`. Berth's Files API acts as root and shows neither groups nor the targets of links, so
 * this runs `find`, `mkdir`, `mv` and `rm` as the sandbox's user, who can do with them what a command of that user could.
 */
export const FILE_METHODS: Readonly<Record<string, Method>> = {
  Stat: (vm, user, { path = '' }) => one(run(vm, user, 'stat', guestPath(user, path))),
  MakeDir: (vm, user, { path = '' }) => one(run(vm, user, 'make', guestPath(user, path))),
  Move: (vm, user, { source = '', destination = '' }) =>
    one(run(vm, user, 'move', guestPath(user, source), guestPath(user, destination))),
  ListDir: async (vm, user, { path = '', depth = 1 }) => {
    const levels = String(Math.min(Math.max(depth, 1), MAX_DEPTH));
    return { entries: await run(vm, user, 'list', guestPath(user, path), levels) };
  },
  Remove: async (vm, user, { path = '' }) => {
    await run(vm, user, 'remove', guestPath(user, path));
    return {};
  },
};
