/** E2B's `/files` of a sandbox: a file's content, downloaded as a stream and uploaded from memory. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { posix } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import type { Berth } from '../../../client/src/berth.ts';
import { Failure } from './failures.ts';
import { guestPath } from './guest-user.ts';

export const MAX_UPLOAD_BYTES = 64 * 1024 * 1024;
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

/** @param body at most MAX_UPLOAD_BYTES */
export async function uploadFiles(place: FilePlace, request: IncomingMessage, body: Buffer) {
  const { berth, id, user } = place;
  const written = [];
  for (const { path, bytes } of await partsOf(place, request, body)) {
    const full = guestPath(user, path);
    await berth.files(id).write(full, bytes, { user });
    written.push({ name: posix.basename(full), path: full, type: 'file' });
  }
  return written;
}

async function partsOf({ path }: FilePlace, request: IncomingMessage, body: Buffer) {
  const content_type = request.headers['content-type'] ?? '';
  if (!content_type.startsWith('multipart/form-data')) {
    const bytes = request.headers['content-encoding'] === 'gzip' ? await unpacked(body) : body;
    return [{ path, bytes: new Uint8Array(bytes) }];
  }
  const form = await new Response(new Uint8Array(body), { headers: { 'content-type': content_type } })
    .formData()
    .catch((cause) => {
      throw new Failure('invalid_argument', 'The body is not multipart/form-data.', { cause });
    });
  const files = form.getAll('file').filter((part) => typeof part !== 'string');
  if (files.length > MAX_FILES)
    throw new Failure('invalid_argument', `A request can write at most ${MAX_FILES} files.`);
  return Promise.all(
    files.map(async (file) => ({ path: path || file.name, bytes: new Uint8Array(await file.arrayBuffer()) })),
  );
}

function unpacked(body: Buffer): Promise<Buffer> {
  return promisify(gunzip)(body, { maxOutputLength: MAX_UPLOAD_BYTES }).catch((cause) => {
    const message = `The body is not gzip of at most ${MAX_UPLOAD_BYTES} bytes.`;
    throw new Failure('invalid_argument', message, { cause });
  });
}
