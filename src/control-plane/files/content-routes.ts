/**
 * Serves the content of files in a running guest: reads or writes a file, streamed with back-pressure. An error in the
 * middle of an answer closes the connection, so that the caller does not take a part for the whole file.
 */
import { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import type { FileFields } from '../../protocol/file-stream.ts';
import { present } from '../../shared/assert.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { principalOf, reauthorise } from '../http/access.ts';
import { mayBePart, namesEtag, rangeOf } from '../http/byte-range.ts';
import { disconnectSignal, takesLong } from '../http/connections.ts';
import { type App, etagOf, mutate, setEtag, typed } from '../http/mutate.ts';
import { closed, InstanceParams } from '../http/schemas.ts';
import { registerStreamedBodies } from '../http/server.ts';
import { instanceId } from '../instances/routes.ts';
import { MARK_USED_EVERY_MS } from '../vms/exec-routes.ts';
import {
  FileEntry,
  FileRequest,
  fileView,
  ModeText,
  PathText,
  queryPath,
  targetOfFiles,
  UserText,
  type Written,
} from './file-call.ts';
import { auditedChange } from './routes.ts';

const TAGS = ['Files'];
const BYTES_TYPE = 'application/octet-stream';
/** A caller that sends nothing for this long, or that sends more after its answer. */
const IDLE_MS = 60_000;

export function registerFileContent(app: App, context: AppContext): void {
  registerRead(app, context);
  void app.register(async (scope) => {
    registerStreamedBodies(scope);
    registerWrite(typed(scope), context);
  });
}

/** Keeps the VM marked as used, and ends the request once the caller's credential or the VM does, until it is over. */
function watch(
  { db, heartbeat_ms = MARK_USED_EVERY_MS }: AppContext,
  request: FastifyRequest,
  reply: FastifyReply,
  call: FileRequest,
) {
  const id = instanceId(request.params as { readonly id: string });
  const beat = async (): Promise<void> => {
    try {
      await targetOfFiles(db, await reauthorise(db, request), id);
    } catch (error) {
      // If the database is unavailable, the credential may still be valid.
      if (error instanceof AppError) call.close();
    }
  };
  const timer = setInterval(() => void beat(), heartbeat_ms);
  disconnectSignal(reply).addEventListener('abort', () => clearInterval(timer), { once: true });
}

function registerRead(app: App, context: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/files',
    config: {
      access: 'vm:write',
      etag: true,
      errors: ['CONFLICT', 'VM_NOT_RUNNING', 'PRECONDITION_FAILED', 'RANGE_NOT_SATISFIABLE'],
    },
    schema: {
      operationId: 'readFile',
      summary: 'Read a file of the guest',
      description:
        'The content is streamed. `Range` with one range of bytes gets a part (206), if the ETag or time in `If-Range` still fits; `If-None-Match` gets 304 for the same file. `Berth-File-Mode` and `Berth-File-User` are the mode and the owner. An answer that ends early was cut off: its connection breaks. Reading needs `vm:write`, because it acts as root.',
      tags: TAGS,
      params: InstanceParams,
      querystring: closed({ path: PathText('/etc/app.conf') }),
      headers: Type.Object({
        Range: Type.Optional(Type.String({ maxLength: 200, description: 'Such as `bytes=0-99`' })),
        'If-Range': Type.Optional(Type.String({ maxLength: 200, description: 'An ETag or a time' })),
        'If-None-Match': Type.Optional(Type.String({ maxLength: 2048, description: 'ETags' })),
      }),
      response: { 200: contentSchema('The content.'), 206: contentSchema('A part of the content.') },
    },
    handler: async (request, reply) => {
      const principal = principalOf(request);
      const path = queryPath(request);
      const place = await targetOfFiles(context.db, principal, instanceId(request.params));
      const action = { verb: 'read', path } as const;
      const call = await FileRequest.open(context, principal, place, action, disconnectSignal(reply));
      watch(context, request, reply, call);
      try {
        return await answer(request, reply, call, present(await call.opened(), 'fields of a file'));
      } catch (error) {
        call.close();
        throw error;
      }
    },
  });
}

async function answer(request: FastifyRequest, reply: FastifyReply, call: FileRequest, file: FileFields) {
  const { size, modified_at, mode, user } = file;
  const etag = etagOf(file.version);
  const {
    range,
    'if-range': if_range,
    'if-none-match': if_none_match,
    'if-match': if_match,
  } = request.headers;
  if (if_match !== undefined && !namesEtag(if_match, etag)) throw new AppError('PRECONDITION_FAILED');
  setEtag(reply, file.version);
  reply
    .header('last-modified', modified_at.toUTCString())
    .header('berth-file-mode', mode)
    .header('berth-file-user', encodeURIComponent(user))
    .header('cache-control', 'no-store')
    .type(BYTES_TYPE);
  if (if_none_match !== undefined && namesEtag(if_none_match, etag)) {
    call.close();
    return reply.status(304).send();
  }
  if (size === null) return reply.send(Readable.from(call.read(0, null)) as never);
  const may_be_part = mayBePart(if_range as string | undefined, etag, modified_at);
  const wanted = may_be_part ? rangeOf(range, size) : null;
  reply.header('accept-ranges', 'bytes');
  if (wanted === 'unsatisfiable') {
    reply.header('content-range', `bytes */${size}`);
    throw new AppError('RANGE_NOT_SATISFIABLE', { message: `The file has ${size} bytes.` });
  }
  const { offset, length } = wanted ?? { offset: 0, length: size };
  if (wanted !== null) {
    reply.status(206).header('content-range', `bytes ${offset}-${offset + length - 1}/${size}`);
  }
  reply.header('content-length', String(length));
  return reply.send(Readable.from(call.read(offset, length)) as never);
}

function contentSchema(description: string) {
  const schema = { type: 'string', maxLength: Number.MAX_SAFE_INTEGER };
  return { description, content: { [BYTES_TYPE]: { schema } } } as never;
}

function registerWrite(app: App, context: AppContext): void {
  app.route({
    method: 'PUT',
    url: '/v1/instances/:id/files',
    config: {
      access: 'vm:write',
      etag: true,
      streamed_body: true,
      errors: ['CONFLICT', 'VM_NOT_RUNNING', 'PRECONDITION_FAILED', 'DISK_FULL'],
    },
    schema: {
      operationId: 'writeFile',
      summary: 'Write a file of the guest',
      description:
        'The body is the content: bytes of any number and type, streamed. The file appears when all of it is on the disk, in one step; until then, and after any error, the old one is there. It keeps the mode and the owner of the file that it replaces; a new one has 0644 and root. Missing folders are made. `If-None-Match: *` creates and never replaces; `If-Match` replaces only the file with that ETag.',
      tags: TAGS,
      params: InstanceParams,
      querystring: closed({
        path: PathText('/etc/app.conf'),
        mode: Type.Optional(ModeText),
        user: Type.Optional(UserText),
      }),
      headers: Type.Object({
        'If-None-Match': Type.Optional(Type.String({ maxLength: 2048, description: 'Only `*`' })),
      }),
      response: { 200: FileEntry, 201: FileEntry },
    },
    handler: async (request, reply) => {
      const path = queryPath(request);
      const { mode = null, user = null } = request.query;
      const { 'if-none-match': if_none_match, 'if-match': if_match } = request.headers;
      if (if_none_match !== undefined && if_none_match.trim() !== '*')
        throw invalid('If-None-Match', 'can only be *');
      const body = request.body as Readable | undefined;
      takesLong(request.raw);
      try {
        const change = auditedChange(instanceId(request.params), path);
        const { body: place } = await mutate(context, request, reply, { action: 'file.write' }, change);
        const action = { verb: 'write', path, mode, user } as const;
        const call = await FileRequest.open(
          context,
          principalOf(request),
          place,
          action,
          disconnectSignal(reply),
        );
        watch(context, request, reply, call);
        const wanted = versionWanted(await call.opened(), { if_none_match, if_match });
        const { is_new, fields } = await send(call, body, wanted).finally(() => call.close());
        setEtag(reply, fields.version);
        return reply.status(is_new ? 201 : 200).send(fileView(fields, path));
      } catch (error) {
        if (body) discard(body);
        throw error;
      }
    },
  });
}

interface Conditions {
  readonly if_none_match: string | undefined;
  readonly if_match: string | undefined;
}

/** What the new file may replace, as {@link FileRequest.commit} takes it. @throws AppError PRECONDITION_FAILED */
function versionWanted(
  file: FileFields | null,
  { if_none_match, if_match }: Conditions,
): string | null | undefined {
  if (if_none_match !== undefined) {
    if (file !== null) throw new AppError('PRECONDITION_FAILED', { message: 'The file exists.' });
    return null;
  }
  if (if_match === undefined) return undefined;
  if (file === null || !namesEtag(if_match, etagOf(file.version))) throw new AppError('PRECONDITION_FAILED');
  return file.version;
}

/** Content and commit. The guest may fail before the caller has sent everything. */
async function send(
  call: FileRequest,
  body: Readable | undefined,
  wanted: string | null | undefined,
): Promise<Written> {
  let complete = false;
  const sent = (async () => {
    if (body) await copy(body, (chunk) => call.write(chunk));
    complete = true;
    await call.commit(wanted);
  })();
  const committed = call.committed().then((written) => {
    if (complete) return written;
    throw new AppError('UNAVAILABLE', { internal: 'a guest was done before its commit' });
  });
  // Whichever fails first says why; the other fails with it.
  const [written] = await Promise.all([committed, sent]);
  return written;
}

/** Reads no faster than `write` takes. @throws AppError when the caller disconnects or falls silent */
function copy(body: Readable, write: (chunk: Buffer) => Promise<void>): Promise<void> {
  return new Promise((resolve, reject) => {
    const idle = setTimeout(() => fail(invalid('body', `did not go on for ${IDLE_MS / 1000} s`)), IDLE_MS);
    const over = () => {
      clearTimeout(idle);
      body.off('data', take);
      body.off('end', end);
      body.off('close', cut);
    };
    const fail = (error: unknown) => {
      over();
      reject(error);
    };
    const end = () => {
      over();
      resolve();
    };
    const cut = () => fail(invalid('body', 'ended early'));
    const take = (chunk: Buffer) => {
      body.pause();
      clearTimeout(idle);
      write(chunk).then(() => {
        idle.refresh();
        body.resume();
      }, fail);
    };
    body.on('error', fail);
    body.on('close', cut);
    body.on('end', end);
    body.on('data', take);
  });
}

/** Takes what the caller still sends, so that it can read its answer, for a while. */
function discard(body: Readable): void {
  // A caller that has gone must not keep the process.
  const timer = setTimeout(() => body.destroy(), IDLE_MS).unref();
  body.once('close', () => clearTimeout(timer));
  body.on('error', () => undefined);
  // The copy must not pause it any more.
  body.removeAllListeners('data');
  body.on('data', () => undefined);
  body.resume();
}
