/** Paths of a guest's files in requests, and files in answers. */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { PATH_BYTES } from '../../protocol/exec-types.ts';
import { decodePath, encodePath, FILE_TYPES, type FileFields } from '../../protocol/file-stream.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { invalid } from '../../shared/errors.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { FILE_MODE_PATTERN, NO_NUL_PATTERN } from '../http/errors.ts';
import { named, nullable, oneOf, Time } from '../http/schemas.ts';

const PATH_WORDS =
  'An absolute path in the guest. Any byte but NUL may be in it: bytes that are no text, and `%`, are percent-encoded';

export const PathText = (example: string) =>
  Type.String({
    minLength: 1,
    maxLength: 3 * PATH_BYTES,
    description: PATH_WORDS,
    examples: [example],
  });
export const ModeText = Type.String({
  pattern: FILE_MODE_PATTERN,
  maxLength: 4,
  description: 'Permission bits, octal',
  examples: ['0644'],
});
export const UserText = Type.String({
  minLength: 1,
  maxLength: 64,
  pattern: NO_NUL_PATTERN,
  description:
    'A user of the guest, by name or number, who becomes the owner, with the first group of that user',
  examples: ['root'],
});

export const FileEntry = named('File', {
  name: Type.String({ description: 'For people; `path` has the bytes', examples: ['app.conf'] }),
  path: Type.String({
    description: 'The absolute path, percent-encoded: as it stands, it fits a query and a `path` in JSON',
    examples: ['/etc/app.conf'],
  }),
  type: oneOf(FILE_TYPES, {
    title: 'FileType',
    description: '`other`: a device, a socket or a named pipe',
    examples: ['file'],
  }),
  size: nullable(Type.Integer({ description: 'In bytes; null: not known', examples: [5123] })),
  mode: Type.String({ description: 'Permission bits, octal', examples: ['0644'] }),
  user: Type.String({ description: 'The owner: its name, or its number if it has none', examples: ['root'] }),
  mtime: Time,
});

/** `path`: where it was found. */
export function fileView(fields: FileFields, path: string) {
  const { type, size, mode, user, modified_at } = fields;
  const name = nameOf(path);
  return { name, path, type, size, mode, user: untrustedText(user), mtime: rfc3339(modified_at) };
}

function nameOf(path: string): string {
  const bytes = decodePath(path.slice(path.lastIndexOf('/') + 1));
  return (bytes ?? Buffer.alloc(0)).toString('utf8');
}

/** The path of an entry of a folder. */
export function pathIn(folder: string, { name }: Pick<FileFields, 'name'>): string {
  return `${folder === '/' ? '' : folder}/${encodePath(name)}`;
}

/**
 * A path as callers see it, percent-encoded in one way, without a `/` at its end. @throws AppError INVALID_REQUEST
 */
export function readPath(text: string, field = 'path'): string {
  const bytes = decodePath(text);
  if (bytes === null) throw invalid(field, 'has a % that is not followed by two hexadecimal digits');
  return checkedPath(bytes, field);
}

/**
 * The `path` of a query. Its bytes are those of the URL, because Fastify replaces what is not UTF-8. @throws AppError
 * INVALID_REQUEST
 */
export function queryPath(request: FastifyRequest): string {
  const { url = '' } = request.raw;
  const query = url.slice(url.indexOf('?') + 1);
  const found = query.split('&').find((part) => decodePath(nameIn(part))?.toString('utf8') === 'path') ?? '';
  const value = found.slice(nameIn(found).length + 1);
  const bytes = decodePath(value.replaceAll('+', ' '));
  if (bytes === null) throw invalid('path', 'has a % that is not followed by two hexadecimal digits');
  return checkedPath(bytes, 'path');
}

function nameIn(part: string): string {
  return part.split('=', 1)[0] ?? '';
}

function checkedPath(bytes: Buffer, field: string): string {
  if (bytes[0] !== '/'.charCodeAt(0)) throw invalid(field, 'must be absolute: it begins with /');
  if (bytes.includes(0)) throw invalid(field, 'must not contain NUL');
  if (bytes.length > PATH_BYTES) throw invalid(field, `must have at most ${PATH_BYTES} bytes`);
  return encodePath(bytes).replace(/(?<=.)\/+$/, '') || '/';
}
