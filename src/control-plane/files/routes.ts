/**
 * Serves the files of a running guest: lists, deletes and moves them, and makes folders. Their content:
 * content-routes.ts.
 */
import { Type } from 'typebox';
import type { InstanceId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import type { Tx } from '../db/pool.ts';
import { principalOf } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import { type App, type MutationOutcome, mutate } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import { closed, InstanceParams, NoContent, named, oneOf, pageOf, pageQuery } from '../http/schemas.ts';
import type { Principal } from '../identity/principal.ts';
import { instanceId } from '../instances/routes.ts';
import type { CommandTarget } from '../vms/exec-routes.ts';
import {
  FileEntry,
  FileRequest,
  fileView,
  ModeText,
  PathText,
  pathIn,
  queryPath,
  readPath,
  targetOfFiles,
  UserText,
} from './file-call.ts';

const TAGS = ['Files'];
const AUDITED_CHARACTERS = 200;
const LINKS_WORDS =
  'Links are followed that belong to root, or are in a folder that only root may write to; another link is a 409.';

export function registerFiles(app: App, context: AppContext, cursors: CursorSealer): void {
  registerList(app, context, cursors);
  registerRemove(app, context);
  registerMove(app, context);
  registerDirectory(app, context);
}

/** What a change of files writes into the audit log: the path, and never the content. */
export function auditedChange(id: InstanceId, path: string, more: Record<string, unknown> = {}) {
  return async (tx: Tx, principal: Principal): Promise<MutationOutcome<200, CommandTarget>> => {
    const place = await targetOfFiles(tx, principal, id);
    const data = { vm_id: place.vm_id, path: path.slice(0, AUDITED_CHARACTERS), ...more };
    return { status: 200, body: place, target: id, data };
  };
}

function registerList(app: App, context: AppContext, cursors: CursorSealer): void {
  const route = '/v1/instances/:id/files/list';
  app.route({
    method: 'GET',
    url: route,
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    schema: {
      operationId: 'listFiles',
      summary: 'List the entries of a folder, sorted by name',
      description: `The order is that of the bytes of the names. An entry that is a link is shown as a link. ${LINKS_WORDS}`,
      tags: TAGS,
      params: InstanceParams,
      querystring: pageQuery(200, { path: PathText('/etc') }),
      response: { 200: pageOf(FileEntry) },
    },
    handler: async (request, reply) => {
      const principal = principalOf(request);
      const id = instanceId(request.params);
      const folder = queryPath(request);
      const gone = disconnectSignal(reply);
      return pageOfList(cursors, principal, request, {
        route,
        of: { instance_id: id, folder },
        list: async (before, count) => {
          const place = await targetOfFiles(context.db, principal, id);
          const action = { verb: 'list', path: folder, after: before, count } as const;
          const call = await FileRequest.open(context, principal, place, action, gone);
          const entries = await call.entries(count);
          return entries.map((fields) => ({ fields, id: pathIn('/', fields).slice(1) }));
        },
        show: ({ fields }) => fileView(fields, pathIn(folder, fields)),
      });
    },
  });
}

function registerRemove(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/instances/:id/files',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    schema: {
      operationId: 'deleteFile',
      summary: 'Delete a file, a link or a folder',
      description:
        'A folder that is not empty is deleted, with all that it holds, only with `recursive=true`. What is mounted in it stays. A link is deleted, and not what it leads to.',
      tags: TAGS,
      params: InstanceParams,
      querystring: closed({
        path: PathText('/srv/old'),
        recursive: Type.Optional(oneOf(['true', 'false'], { default: 'false' })),
      }),
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const path = queryPath(request);
      const recursive = request.query.recursive === 'true';
      const change = auditedChange(instanceId(request.params), path, { recursive });
      const { body: place } = await mutate(
        context,
        request,
        reply,
        { action: 'file.delete', counts: true },
        change,
      );
      const action = { verb: 'remove', path, recursive } as const;
      const call = await FileRequest.open(
        context,
        principalOf(request),
        place,
        action,
        disconnectSignal(reply),
      );
      await call.removed();
      return reply.status(204).send(null);
    },
  });
}

function registerMove(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/files/move',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING', 'DISK_FULL'] },
    schema: {
      operationId: 'moveFile',
      summary: 'Move or rename a file, a link or a folder',
      description:
        'In one step, within one file system. A file at `to` is replaced, and so is an empty folder by a folder. Missing folders of `to` are made.',
      tags: TAGS,
      params: InstanceParams,
      body: named('MoveFileRequest', { from: PathText('/srv/new.conf'), to: PathText('/srv/app.conf') }),
      response: { 200: FileEntry },
    },
    handler: async (request, reply) => {
      const path = readPath(request.body.from, 'from');
      const to = readPath(request.body.to, 'to');
      const change = auditedChange(instanceId(request.params), path, { to: to.slice(0, AUDITED_CHARACTERS) });
      const { body: place } = await mutate(context, request, reply, { action: 'file.move' }, change);
      const action = { verb: 'move', path, to } as const;
      const call = await FileRequest.open(
        context,
        principalOf(request),
        place,
        action,
        disconnectSignal(reply),
      );
      const { fields } = await call.written();
      call.close();
      return fileView(fields, to);
    },
  });
}

function registerDirectory(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/files/directory',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING', 'DISK_FULL'] },
    schema: {
      operationId: 'createDirectory',
      summary: 'Make a folder, and the missing ones above it',
      description:
        'A folder that is there already is left as it is: 200. `mode` (0755 if absent) is that of the last folder; `user` owns all that are made.',
      tags: TAGS,
      params: InstanceParams,
      body: named('CreateDirectoryRequest', {
        path: PathText('/srv/data'),
        mode: Type.Optional(ModeText),
        user: Type.Optional(UserText),
      }),
      response: { 200: FileEntry, 201: FileEntry },
    },
    handler: async (request, reply) => {
      const { mode = null, user = null } = request.body;
      const path = readPath(request.body.path);
      const change = auditedChange(instanceId(request.params), path);
      const { body: place } = await mutate(
        ...([context, request, reply, { action: 'file.create_directory' }, change] as const),
      );
      const action = { verb: 'directory', path, mode, user } as const;
      const call = await FileRequest.open(
        context,
        principalOf(request),
        place,
        action,
        disconnectSignal(reply),
      );
      const { is_new, fields } = await call.written();
      call.close();
      return reply.status(is_new ? 201 : 200).send(fileView(fields, path));
    },
  });
}
