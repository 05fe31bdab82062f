/**
 * `FileCall` is one request about files of a guest, over a stream to the VM's host. It sends and receives the frames of
 * the protocol one at a time, and limits how long the guest may be silent. Also here: the paths in requests, and the
 * files and errors in answers.
 *
 * - If guest or host fall silent, break the protocol or disconnect, the call fails. This is never taken for a file's
 *   end.
 * - The caller must close the call.
 */
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { PATH_BYTES } from '../../protocol/exec-types.ts';
import {
  decodePath,
  encodePath,
  FILE_TYPES,
  type FileFields,
  FROM_FILES,
  fieldsOf,
  MalformedStreamError,
  rangeBytes,
  StreamFrames,
  streamFrame,
  TO_FILES,
} from '../../protocol/file-stream.ts';
import type { HostCall } from '../../protocol/host-calls.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import type { InstanceId, OrgId } from '../../shared/ids.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { Db, Tx } from '../db/pool.ts';
import type { HostCalls } from '../fleet/host-calls.ts';
import { FILE_MODE_PATTERN, NO_NUL_PATTERN } from '../http/errors.ts';
import { named, nullable, oneOf, Time } from '../http/schemas.ts';
import type { Principal } from '../identity/principal.ts';
import { findInstance } from '../instances/store.ts';
import { type CommandTarget, commandTarget } from '../vms/exec-routes.ts';
import { ruleOrThrow } from '../vms/request-change.ts';
import { markUsed } from '../vms/store.ts';

/** Why the guest could not do what was asked, as an error for the caller: by the code of file-tasks.pl, or the guest's errno. */
const FAILURES: Readonly<Record<string, () => AppError>> = {
  2: () => new AppError('NOT_FOUND', { message: 'There is no such file or folder in the guest.' }),
  16: () => conflict('It is in use, such as by a mount.'),
  17: () => conflict('Something else has that name already.'),
  18: () => conflict('The guest cannot move it to another file system. Copy it, then delete it.'),
  20: () => conflict('A part of the path is not a folder.'),
  21: () => conflict('It is a folder.'),
  22: () => conflict('The guest cannot move a folder into itself.'),
  28: full,
  30: () => conflict("The guest's file system is read-only."),
  36: () => invalid('path', 'has a name of more than 255 bytes'),
  39: () => conflict('The folder is not empty. To delete it with all that it holds, send recursive=true.'),
  40: () => conflict('The path has too many links.'),
  122: full,
  changed: () => new AppError('PRECONDITION_FAILED', { message: 'The file has changed meanwhile.' }),
  link: () =>
    conflict(
      "The path has a link that is not root's, in a folder that others may write to. Name the file itself.",
    ),
  links: () => conflict('The path has too many links.'),
  no_name: () => invalid('path', 'must end with the name of a file or folder'),
  not_regular: () => conflict('It is not a regular file.'),
  shrunk: () => conflict('The file became shorter while it was read.'),
  user: () => invalid('user', 'is not a user of the guest'),
};

/** `payload`: code, NUL, text. */
function fileFailure(payload: Buffer): AppError {
  const [code = '', text = ''] = payload.toString('utf8', 0, 2_000).split('\0');
  const known = Object.hasOwn(FAILURES, code) ? FAILURES[code] : undefined;
  if (known) return known();
  const why = untrustedText(text);
  if (/^\d{1,4}$/.test(code)) return conflict(`The guest refused it: ${why}.`);
  return new AppError('UNAVAILABLE', { message: 'The guest could not do it.', internal: why });
}

function conflict(message: string): AppError {
  return new AppError('CONFLICT', { message });
}

function full(): AppError {
  return new AppError('DISK_FULL', {
    message: "The guest's file system has no room for it. What was there before is unchanged.",
  });
}

/** For the guest's supervisor, which the first request of a boot starts. */
const OPEN_WITHIN_MS = 45_000;
/** A guest that says nothing for this long, while it should. A busy disk may hold up the end of a write. */
const SILENT_MS = 120_000;

export type FileAction = Extract<HostCall, { kind: 'file' }>['action'];

export interface FileContext {
  readonly db: Db;
  readonly host_calls: HostCalls;
}

/** Where the instance's VM runs. @throws AppError NOT_FOUND, CONFLICT, VM_NOT_RUNNING */
export async function targetOfFiles(
  tx: Tx,
  { org_id }: Pick<Principal, 'org_id'>,
  id: InstanceId,
): Promise<CommandTarget> {
  const row = await findInstance(tx, org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  ruleOrThrow(row, 'exec');
  await markUsed(tx, id);
  return commandTarget(row);
}

interface Frame {
  readonly type: number;
  readonly payload: Buffer;
}

export interface Written {
  readonly is_new: boolean;
  readonly fields: FileFields;
}

export class FileRequest {
  readonly #context: FileContext;
  readonly #org_id: OrgId;
  readonly #place: CommandTarget;
  readonly #line: Duplex;
  readonly #frames: AsyncGenerator<Frame>;

  private constructor(context: FileContext, org_id: OrgId, place: CommandTarget, line: Duplex) {
    this.#context = context;
    this.#org_id = org_id;
    this.#place = place;
    this.#line = line;
    line.on('error', () => line.destroy());
    this.#frames = framesOf(line);
  }

  /** `signal`: the caller has disconnected. @throws AppError VM_NOT_RUNNING, RATE_LIMITED, UNAVAILABLE */
  static async open(
    context: FileContext,
    { org_id }: Pick<Principal, 'org_id'>,
    place: CommandTarget,
    action: FileAction,
    signal: AbortSignal,
  ): Promise<FileRequest> {
    const { host_id, instance_id, vm_id } = place;
    const call = { kind: 'file', instance_id, vm_id, action } as const;
    const line = await context.host_calls.open(host_id, call, OPEN_WITHIN_MS, signal);
    signal.addEventListener('abort', () => line.destroy(), { once: true });
    if (signal.aborted) line.destroy();
    return new FileRequest(context, org_id, place, line);
  }

  close(): void {
    this.#line.destroy();
  }

  /** The file that a read or a write has opened; null: a write's file does not exist yet. @throws AppError */
  async opened(): Promise<FileFields | null> {
    const { payload } = await this.#expect(FROM_FILES.opened);
    return payload.length === 0 ? null : this.#understand(() => fieldsOf(payload));
  }

  /** The bytes of a file that was opened to be read. @throws AppError, also when fewer come than were asked for */
  async *read(offset: number, length: number | null): AsyncGenerator<Buffer, void, undefined> {
    await this.#send(TO_FILES.range, rangeBytes(offset, length ?? Number.MAX_SAFE_INTEGER));
    let left = length ?? Number.POSITIVE_INFINITY;
    for (;;) {
      const { type, payload } = await this.#next();
      if (type === FROM_FILES.done) break;
      left -= payload.length;
      if (type !== FROM_FILES.content || left < 0) throw await this.#broken('more than was asked for');
      yield payload;
    }
    if (length !== null && left > 0) throw await this.#broken('fewer bytes than were asked for');
    this.close();
  }

  /** Resolves when the guest has room for more. @throws AppError */
  async write(content: Uint8Array): Promise<void> {
    await this.#send(TO_FILES.content, content);
  }

  /** `version`: of the file that it replaces; null: there is none; absent: any. */
  async commit(version?: string | null): Promise<void> {
    const wanted = version === undefined ? '' : (version ?? '-');
    await this.#send(TO_FILES.commit, Buffer.from(wanted));
    const timer = setTimeout(() => this.close(), SILENT_MS);
    this.#line.once('close', () => clearTimeout(timer));
  }

  /** The end of a move or a new folder. @throws AppError */
  written(): Promise<Written> {
    return this.#written(SILENT_MS);
  }

  /** The end of a write. Ask for it before content is sent: the guest may fail at any time. @throws AppError */
  committed(): Promise<Written> {
    return this.#written(null);
  }

  async #written(silent_ms: number | null): Promise<Written> {
    const { payload } = await this.#expect(FROM_FILES.done, silent_ms);
    return this.#understand(() => ({
      is_new: payload.toString('latin1', 0, 2) === '1\0',
      fields: fieldsOf(payload.subarray(2)),
    }));
  }

  /** @throws AppError */
  async removed(): Promise<void> {
    for (;;) {
      const { type } = await this.#next();
      if (type === FROM_FILES.done) break;
      if (type !== FROM_FILES.working) throw await this.#broken('an unknown frame');
    }
    this.close();
  }

  /** @throws AppError */
  async entries(max: number): Promise<FileFields[]> {
    const found: FileFields[] = [];
    for (;;) {
      const { type, payload } = await this.#next();
      if (type === FROM_FILES.done) break;
      if (type !== FROM_FILES.entry || found.length >= max) throw await this.#broken('too many entries');
      const fields = await this.#understand(() => fieldsOf(payload));
      // A caller who copies the folder would write beside its own.
      if (!isName(fields.name)) throw await this.#broken('an entry without a proper name');
      found.push(fields);
    }
    this.close();
    return found;
  }

  /** @throws AppError when the guest has failed, or the stream has ended */
  async #next(silent_ms: number | null = SILENT_MS): Promise<Frame> {
    const timer = silent_ms === null ? undefined : setTimeout(() => this.close(), silent_ms);
    try {
      const { value, done } = await this.#frames.next();
      if (done === true) throw await this.#broken('the stream was cut off');
      if (value.type === FROM_FILES.failed) throw fileFailure(value.payload);
      return value;
    } catch (error) {
      this.close();
      throw error instanceof AppError ? error : await this.#broken(String(error));
    } finally {
      clearTimeout(timer);
    }
  }

  async #expect(type: number, silent_ms: number | null = SILENT_MS): Promise<Frame> {
    const frame = await this.#next(silent_ms);
    if (frame.type !== type) throw await this.#broken('an unexpected frame');
    return frame;
  }

  async #send(type: number, payload: Uint8Array): Promise<void> {
    if (this.#line.destroyed) throw await this.#broken('the stream was cut off');
    if (this.#line.write(streamFrame(type, payload))) return;
    const timer = setTimeout(() => this.#line.destroy(), SILENT_MS);
    const closed = new AbortController();
    const close = () => closed.abort();
    this.#line.once('close', close);
    try {
      await once(this.#line, 'drain', { signal: closed.signal });
    } catch {
      throw await this.#broken('the stream was cut off');
    } finally {
      clearTimeout(timer);
      this.#line.off('close', close);
    }
  }

  async #understand<T>(read: () => T): Promise<T> {
    try {
      return read();
    } catch (error) {
      if (!(error instanceof MalformedStreamError)) throw error;
      throw await this.#broken(error.message);
    }
  }

  /** Why there is no answer: usually the VM has ended. */
  async #broken(internal: string): Promise<AppError> {
    this.close();
    const row = await findInstance(this.#context.db, this.#org_id, this.#place.instance_id);
    if (!row) return new AppError('NOT_FOUND');
    try {
      ruleOrThrow(row, 'exec');
    } catch (error) {
      return error as AppError;
    }
    const message =
      'The guest or its host disconnected before the end. No file is half written: repeat the request.';
    return new AppError('UNAVAILABLE', { message, internal, retry_after_seconds: 2 });
  }
}

/** @throws MalformedStreamError */
async function* framesOf(line: Duplex): AsyncGenerator<Frame> {
  const frames = new StreamFrames();
  try {
    for await (const chunk of line) yield* frames.push(chunk as Buffer);
  } finally {
    line.destroy();
  }
}

/** Of one entry of a folder. */
function isName(name: Buffer): boolean {
  return !name.includes('/') && !['', '.', '..'].includes(name.toString('latin1'));
}

// Paths of a guest's files in requests, and files in answers.

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
