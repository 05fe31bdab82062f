/** The caller's own account, its address and its SSH keys. */
import type { FastifyRequest } from 'fastify';
import { type Static, Type } from 'typebox';
import { deleteAccount } from '../../accounts/change-account.ts';
import { confirmEmail, requestEmailChange } from '../../accounts/change-email.ts';
import { PASSWORD_MAX_LENGTH } from '../../auth/passwords.ts';
import { userOf } from '../../auth/principal.ts';
import { findUser, lockUser, updateUser } from '../../auth/store.ts';
import { refuseWhileLocked } from '../../auth/verify-account.ts';
import type { Tx } from '../../db/pool.ts';
import { present } from '../../lib/assert.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { AppError } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { addSshKey, type ChangedKey, keyViewOf, revokeSshKey } from '../../ssh-keys/account-keys.ts';
import { listSshKeys } from '../../ssh-keys/store.ts';
import { sshKeyView } from '../../ssh-keys/view.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import { appendAudit } from '../append-audit.ts';
import type { AppContext } from '../context.ts';
import { clearRefreshCookie } from '../cookies.ts';
import { requireMatch, setEtag } from '../etag.ts';
import { mutate } from '../mutate.ts';
import { NOTHING } from '../nothing.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import type { RateLimits } from '../rate-limits.ts';
import {
  COMMON,
  closed,
  Email,
  EmptyBody,
  errors,
  IdParams,
  Name,
  NoContent,
  named,
  nullable,
  pageOf,
  pageQuery,
  Time,
} from '../schemas.ts';

export const User = named('User', {
  id: Type.String(),
  email: Type.String(),
  name: Type.String(),
  created_at: Time,
  mfa_enabled: Type.Boolean(),
  email_confirmed: Type.Boolean({
    description: 'Until it is, the account holds no API or SSH keys and accepts no invitation',
  }),
});
type UserRow = NonNullable<Awaited<ReturnType<typeof findUser>>>;

export function userView({ has_smtp }: Pick<AppContext, 'has_smtp'>, user: UserRow): Static<typeof User> {
  const { id, email, name } = user;
  return {
    id,
    email,
    name,
    created_at: rfc3339(user.created_at),
    mfa_enabled: Boolean(user.mfa_enabled),
    email_confirmed: user.email_confirmed || !has_smtp,
  };
}

/** What can be changed of an account. */
function etagValue({ id, email, name }: UserRow) {
  return { id, email, name };
}

const SshKey = named('SshKey', {
  id: Type.String(),
  name: Type.String(),
  type: Type.String(),
  fingerprint: Type.String(),
  public_key: Type.String(),
  org_id: nullable(
    Type.String({
      description: 'The only organisation to whose instances it grants access; null: all of its owner',
    }),
  ),
  created_at: Time,
  last_used_at: nullable(
    Type.String({
      format: 'date-time',
      description: 'When a guest last told of a login with it: up to a minute after the login',
    }),
  ),
});

export function registerMe(app: App, context: AppContext, cursors: CursorSealer, limits: RateLimits): void {
  registerAccount(app, context);
  registerEmail(app, context, limits);
  registerSshKeys(app, context, cursors);
}

function registerAccount(app: App, context: AppContext): void {
  const { db } = context;
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
    handler: async (request, reply) => {
      const user = await findUser(db, userOf(principalOf(request)));
      if (!user) throw new AppError('UNAUTHENTICATED');
      setEtag(reply, etagValue(user));
      return userView(context, user);
    },
  });
  app.route({
    method: 'PATCH',
    url: '/v1/me',
    config: { access: 'session' },
    schema: {
      operationId: 'changeMe',
      summary: "Change the caller's name",
      tags: ['Accounts'],
      body: closed({ name: Type.Optional(Name) }),
      response: { 200: User, ...errors(...COMMON, 'PRECONDITION_FAILED') },
    },
    handler: async (request, reply) => {
      const { name } = request.body;
      const { body } = await mutate(
        context,
        request,
        reply,
        { action: 'account.change' },
        async (tx, principal) => {
          const id = userOf(principal);
          await lockUser(tx, id);
          const before = await findUser(tx, id);
          // Deleted since the request was let in.
          if (!before) throw new AppError('UNAUTHENTICATED');
          requireMatch(request, etagValue(before));
          if (name !== undefined) await updateUser(tx, id, { name });
          const user = present(await findUser(tx, id), 'user just changed');
          setEtag(reply, etagValue(user));
          return { status: 200, body: userView(context, user), target: id, unchanged: name === undefined };
        },
      );
      return body;
    },
  });
  app.route({
    method: 'DELETE',
    url: '/v1/me',
    config: { access: 'session', sudo: true },
    schema: {
      operationId: 'deleteMe',
      summary: 'Delete the account, with the organisations that are its alone',
      tags: ['Accounts'],
      body: EmptyBody,
      response: { 204: NoContent, ...errors(...COMMON, 'SUDO_REQUIRED', 'CONFLICT', 'PRECONDITION_FAILED') },
    },
    handler: async (request, reply) => {
      await mutate(context, request, reply, { action: 'account.delete' }, async (tx, principal) => {
        const check = (user: UserRow) => requireMatch(request, etagValue(user));
        const target = userOf(principal);
        for (const { org_id, role } of await deleteAccount(tx, principal, check)) {
          const entry = { action: 'member.remove', target, data: { role } };
          // Where the caller acts the deletion itself is noted.
          if (org_id !== principal.org_id) await appendAudit(context, tx, request, org_id, entry);
        }
        return { status: 204, body: null, target };
      });
      clearRefreshCookie(reply);
      return reply.status(204).send(null);
    },
  });
}

function registerEmail(app: App, context: AppContext, limits: RateLimits): void {
  const { db, mailbox, public_url } = context;
  const Password = Type.String({ minLength: 1, maxLength: PASSWORD_MAX_LENGTH });
  app.route({
    method: 'PUT',
    url: '/v1/me/email',
    config: { access: 'session' },
    schema: {
      operationId: 'changeEmail',
      summary: 'Change the address; it holds once the token sent there is confirmed',
      description: 'With the present address it sends the confirmation again.',
      tags: ['Accounts'],
      body: closed({ email: Email, password: Password }),
      response: { 202: NoContent, ...errors(...COMMON, 'ACCOUNT_LOCKED', 'RATE_LIMITED') },
    },
    handler: async (request, reply) => {
      const principal = principalOf(request);
      await refuseWhileLocked(db, userOf(principal));
      await limits.countAddress(request, reply);
      await requestEmailChange(db, mailbox, public_url, principal, request.body, request.ip);
      return reply.status(202).send(NOTHING);
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/me/email/confirm',
    config: { access: 'session' },
    schema: {
      operationId: 'confirmEmail',
      summary: 'Confirm an address, the first or a new one, by the token sent there',
      tags: ['Accounts'],
      body: closed({ token: Type.String({ minLength: 1, maxLength: 200 }) }),
      response: { 204: NoContent, ...errors(...COMMON, 'CONFLICT') },
    },
    handler: async (request, reply) => {
      const { token } = request.body;
      await mutate(context, request, reply, { action: 'account.confirm_email' }, async (tx, principal) => {
        await confirmEmail(tx, principal, token);
        return { status: 204, body: null, target: userOf(principal) };
      });
      return reply.status(204).send(null);
    },
  });
}

function registerSshKeys(app: App, context: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/me/ssh-keys',
    config: { access: 'ssh_keys:read', people_only: true },
    schema: {
      operationId: 'listSshKeys',
      summary: "The caller's SSH keys; to an API key those that grant access in its organisation",
      tags: ['SSH'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(SshKey), ...errors(...COMMON) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'ssh-keys',
        list: (before, count) => listSshKeys(context.db, keyViewOf(principal), before, count),
        show: sshKeyView,
      });
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/me/ssh-keys',
    config: { access: 'ssh_keys:write', people_only: true, confirmed_address: true, idempotent: true },
    schema: {
      operationId: 'addSshKey',
      summary: 'Register an SSH key; one that an API key registers belongs to that API key’s organisation',
      tags: ['SSH'],
      body: closed({ name: Name, public_key: Type.String({ minLength: 1, maxLength: 20_000 }) }),
      response: { 201: SshKey, ...errors(...COMMON, 'CONFLICT', 'QUOTA_EXCEEDED') },
    },
    handler: async (request, reply) => {
      const mutation = { action: 'ssh_key.add' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const added = await addSshKey(tx, context.quotas, principal, request.body);
        const audited = await auditEverywhere(context, tx, request, mutation.action, added);
        return { status: 201, body: sshKeyView(added.row), ...audited };
      });
      return reply.status(201).send(body);
    },
  });
  app.route({
    method: 'DELETE',
    url: '/v1/me/ssh-keys/:id',
    config: { access: 'ssh_keys:write', people_only: true },
    schema: {
      operationId: 'revokeSshKey',
      summary: 'Revoke an SSH key',
      tags: ['SSH'],
      params: IdParams,
      body: EmptyBody,
      response: { 204: NoContent, ...errors(...COMMON, 'NOT_FOUND') },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      const mutation = { action: 'ssh_key.revoke' };
      await mutate(context, request, reply, mutation, async (tx, principal) => {
        if (!isId('key', id)) throw new AppError('NOT_FOUND');
        const gone = await revokeSshKey(tx, principal, id);
        const audited = await auditEverywhere(context, tx, request, mutation.action, gone);
        return { status: 204, body: null, ...audited };
      });
      return reply.status(204).send(null);
    },
  });
}

/**
 * An audit entry in each organisation that an SSH key's change concerns. Answers what the mutation itself notes where the
 * caller acts: nothing, if that is none of them.
 */
async function auditEverywhere(
  context: AppContext,
  tx: Tx,
  request: FastifyRequest,
  action: string,
  { row, org_ids }: ChangedKey,
) {
  const { org_id } = principalOf(request);
  const entry = { target: row.id, data: { fingerprint: row.fingerprint } };
  for (const each of org_ids) {
    if (each !== org_id) await appendAudit(context, tx, request, each, { action, ...entry });
  }
  return { ...entry, unchanged: !org_ids.includes(org_id) };
}
