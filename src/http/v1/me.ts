import { type Static, Type } from 'typebox';
import { findUser } from '../../auth/store.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { AppError } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { addSshKey, revokeSshKey } from '../../ssh-keys/account-keys.ts';
import { listSshKeys } from '../../ssh-keys/store.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { type CursorSealer, page } from '../pagination.ts';
import { readLimit } from '../query.ts';
import {
  COMMON,
  closed,
  EmptyBody,
  errors,
  InstanceParams,
  Name,
  NoContent,
  nullable,
  pageOf,
  pageQuery,
  Time,
} from '../schemas.ts';

export const User = closed({
  id: Type.String(),
  email: Type.String(),
  name: Type.String(),
  created_at: Time,
  mfa_enabled: Type.Boolean(),
});

export function userView(user: {
  id: string;
  email: string;
  name: string;
  created_at: Date;
}): Static<typeof User> {
  return {
    id: user.id,
    email: user.email,
    name: user.name,
    created_at: rfc3339(user.created_at),
    mfa_enabled: false,
  };
}

const SshKey = closed({
  id: Type.String(),
  name: Type.String(),
  type: Type.String(),
  fingerprint: Type.String(),
  public_key: Type.String(),
  created_at: Time,
  last_used_at: nullable(Time),
});

type SshKeyRow = Awaited<ReturnType<typeof listSshKeys>>[number];

function sshKeyView(row: SshKeyRow): Static<typeof SshKey> {
  return {
    ...row,
    created_at: rfc3339(row.created_at),
    last_used_at: row.last_used_at === null ? null : rfc3339(row.last_used_at),
  };
}

export function registerMe(app: App, context: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/me',
    config: { access: 'session' },
    schema: {
      operationId: 'getMe',
      summary: 'The caller',
      tags: ['Accounts'],
      querystring: EmptyBody,
      response: { 200: User, ...errors(...COMMON) },
    },
    handler: async (request) => {
      const user = await findUser(context.db, principalOf(request).user_id);
      if (!user) throw new AppError('NOT_FOUND');
      return userView(user);
    },
  });
  registerSshKeys(app, context, cursors);
}

function registerSshKeys(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/me/ssh-keys',
    config: { access: 'ssh_keys:read' },
    schema: {
      operationId: 'listSshKeys',
      summary: "The caller's SSH keys",
      tags: ['SSH'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(SshKey), ...errors(...COMMON) },
    },
    handler: async (request) => {
      const principal = principalOf(request);
      const limit = readLimit(request.query.limit, 200);
      const scope = { route: 'ssh-keys', principal, filter: {} };
      const before = request.query.cursor === undefined ? null : cursors.open(scope, request.query.cursor);
      const rows = await listSshKeys(db, principal.user_id, before, limit + 1);
      return page(cursors, scope, rows, limit, sshKeyView);
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/me/ssh-keys',
    config: { access: 'ssh_keys:write' },
    schema: {
      operationId: 'addSshKey',
      summary: 'Register an SSH key',
      tags: ['SSH'],
      body: closed({ name: Name, public_key: Type.String({ minLength: 1, maxLength: 20_000 }) }),
      response: { 201: SshKey, ...errors(...COMMON, 'CONFLICT', 'QUOTA_EXCEEDED') },
    },
    handler: async (request, reply) => {
      const row = await addSshKey(db, principalOf(request), request.body);
      return reply.status(201).send(sshKeyView(row));
    },
  });
  app.route({
    method: 'DELETE',
    url: '/v1/me/ssh-keys/:id',
    config: { access: 'ssh_keys:write' },
    schema: {
      operationId: 'revokeSshKey',
      summary: 'Revoke an SSH key',
      tags: ['SSH'],
      params: InstanceParams,
      body: EmptyBody,
      response: { 204: NoContent, ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request, reply) => {
      if (!isId('key', request.params.id)) throw new AppError('NOT_FOUND');
      await revokeSshKey(db, principalOf(request), request.params.id);
      return reply.status(204).send(null);
    },
  });
}
