/** E2B's `/files` of a sandbox: a file's content, streamed; several files of one request come through memory. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { posix } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import type { Berth, RawBody } from '../../../client/src/berth.ts';
import { Failure } from './failures.ts';
import { guestPath } from './guest-user.ts';
import { partsOfBody } from './request-body.ts';

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
