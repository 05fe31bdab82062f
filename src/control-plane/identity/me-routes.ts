/**
 * Routes of the caller's own account: show, rename and delete it, change its e-mail address, and manage its SSH keys.
 */
import type { FastifyRequest } from 'fastify';
import { type Static, Type } from 'typebox';
import { present } from '../../shared/assert.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import type { Tx } from '../db/pool.ts';
import { principalOf } from '../http/access.ts';
import { clearRefreshCookie } from '../http/cookies.ts';
import { type App, appendAudit, mutate, requireMatch, setEtag } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import {
  closed,
  Email,
  EmptyBody,
  EXAMPLE_PUBLIC_KEY,
  Fingerprint,
  idOf,
  KeyType,
  MailToken,
  NO_BODY,
  NoContent,
  named,
  nameText,
  nullable,
  PublicKey,
  pageOf,
  pageQuery,
  pathIds,
  Time,
} from '../http/schemas.ts';
import { addSshKey, type ChangedKey, keyViewOf, revokeSshKey, sshKeyView } from '../ssh-keys/account-keys.ts';
import { listSshKeys } from '../ssh-keys/store.ts';
import { confirmEmail, deleteAccount, refuseWhileLocked, requestEmailChange } from './accounts.ts';
import { requirePasswordLogin } from './login.ts';
import { PASSWORD_MAX_LENGTH } from './passwords.ts';
import { userOf } from './principal.ts';
import { findUser, lockUser, updateUser } from './store.ts';

export const User = named('User', {
  id: idOf('usr'),
  email: Email,
  name: Type.String({ examples: ['Ada Lovelace'] }),
  created_at: Time,
  mfa_enabled: Type.Boolean(),
  password_login: Type.Boolean({ description: 'The account has a password, and this Berth takes passwords' }),
  oidc_login: Type.Boolean({ description: 'The account is linked to the OpenID provider' }),
  email_confirmed: Type.Boolean({
    description: 'While false, the account can have no API or SSH keys and accept no invitation',
  }),
});
type UserRow = NonNullable<Awaited<ReturnType<typeof findUser>>>;

export function userView(
  { has_smtp, oidc, password_login }: Pick<AppContext, 'has_smtp' | 'oidc' | 'password_login'>,
  user: UserRow,
): Static<typeof User> {
  const { id, email, name } = user;
  return {
    id,
    email,
    name,
    created_at: rfc3339(user.created_at),
    mfa_enabled: Boolean(user.mfa_enabled),
    password_login: password_login && user.password_hash !== null,
    oidc_login: oidc !== null && user.issuers.includes(oidc.provider.issuer),
    email_confirmed: user.email_confirmed || !has_smtp,
  };
}

/** The fields of an account that a change can change. */
function etagValue({ id, email, name }: UserRow) {
  return { id, email, name };
}

const SshKey = named('SshKey', {
  id: idOf('key'),
  name: Type.String({ examples: ['laptop'] }),
  type: KeyType,
  fingerprint: Fingerprint,
  public_key: PublicKey,
  org_id: nullable(
    idOf('org', {
      description:
        "The organisation whose instances it grants access to; null: all of its owner's organisations",
    }),
  ),
  created_at: Time,
  last_used_at: nullable(
    Type.String({
      format: 'date-time',
      description: 'The last login that a guest has reported, up to a minute after it',
    }),
  ),
});

export function registerMe(app: App, context: AppContext, cursors: CursorSealer, limits: RateLimits): void {
  registerGet(app, context);
  registerChange(app, context);
  registerDelete(app, context);
  registerEmail(app, context, limits);
  registerKeyList(app, context, cursors);
  registerKeyAddition(app, context);
  registerKeyRevocation(app, context);
}

function registerGet(app: App, context: AppContext): void {
  const { db } = context;
  app.route({
    method: 'GET',
    url: '/v1/me',
    config: { access: 'session', etag: true },
    schema: {
      operationId: 'getMe',
      summary: "Get the caller's account",
      tags: ['Accounts'],
      response: { 200: User },
    },
    handler: async (request, reply) => {
      const user = await findUser(db, userOf(principalOf(request)));
      if (!user) throw new AppError('UNAUTHENTICATED');
      setEtag(reply, etagValue(user));
      return userView(context, user);
    },
  });
}

function registerChange(app: App, context: AppContext): void {
  app.route({
    method: 'PATCH',
    url: '/v1/me',
    config: { access: 'session', etag: true, errors: ['PRECONDITION_FAILED'] },
    schema: {
      operationId: 'changeMe',
      summary: "Change the caller's name",
      tags: ['Accounts'],
      body: closed({ name: Type.Optional(nameText('Ada Lovelace')) }),
      response: { 200: User },
    },
    handler: async (request, reply) => {
      const { name } = request.body;
      const mutation = { action: 'account.change' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const id = userOf(principal);
        await lockUser(tx, id);
        const before = await findUser(tx, id);
        // Deleted since the request was authenticated.
        if (!before) throw new AppError('UNAUTHENTICATED');
        requireMatch(request, etagValue(before));
        if (name !== undefined) await updateUser(tx, id, { name });
        const user = present(await findUser(tx, id), 'user just changed');
        setEtag(reply, etagValue(user));
        const body = userView(context, user);
        return { status: 200, body, target: id, data: { name }, unchanged: name === undefined };
      });
      return body;
    },
  });
}

function registerDelete(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/me',
    config: { access: 'session', sudo: true, sets_cookie: true, errors: ['CONFLICT', 'PRECONDITION_FAILED'] },
    schema: {
      operationId: 'deleteMe',
      summary: 'Delete the account and the organisations that only it belongs to',
      tags: ['Accounts'],
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      await mutate(context, request, reply, { action: 'account.delete' }, async (tx, principal) => {
        const check = (user: UserRow) => requireMatch(request, etagValue(user));
        const target = userOf(principal);
        for (const { org_id, role } of await deleteAccount(tx, principal, check)) {
          const entry = { action: 'member.remove', target, data: { role } };
          // The organisation that the caller acts in gets the entry of the deletion itself.
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
  const Password = Type.String({
    minLength: 1,
    maxLength: PASSWORD_MAX_LENGTH,
    examples: ['a long passphrase of yours'],
  });
  app.route({
    method: 'PUT',
    url: '/v1/me/email',
    config: { access: 'session', errors: ['ACCOUNT_LOCKED'] },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'changeEmail',
      summary: 'Change the address; it takes effect when the token sent there is confirmed',
      description: 'The present address gets its confirmation mail again.',
      tags: ['Accounts'],
      body: closed({ email: Email, password: Password }),
      response: { 202: NoContent },
    },
    handler: async (request, reply) => {
      const principal = principalOf(request);
      await refuseWhileLocked(db, userOf(principal));
      limits.countAddress(request, reply);
      await requestEmailChange(db, mailbox, public_url, principal, request.body, request.ip);
      return reply.status(202).send(NO_BODY);
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/me/email/confirm',
    config: { access: 'session', errors: ['CONFLICT'] },
    schema: {
      operationId: 'confirmEmail',
      summary: 'Confirm the first or a new address with the token sent there',
      tags: ['Accounts'],
      body: closed({ token: MailToken }),
      response: { 204: NoContent },
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

function registerKeyList(app: App, context: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/me/ssh-keys',
    config: { access: 'ssh_keys:read', people_only: true },
    schema: {
      operationId: 'listSshKeys',
      summary: "List the caller's SSH keys; for an API key, those that grant access in its organisation",
      tags: ['SSH'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(SshKey) },
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
}

function registerKeyAddition(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/me/ssh-keys',
    config: {
      access: 'ssh_keys:write',
      people_only: true,
      confirmed_address: true,
      idempotent: true,
      errors: ['CONFLICT', 'QUOTA_EXCEEDED'],
    },
    schema: {
      operationId: 'addSshKey',
      summary: "Register an SSH key; one that an API key registers belongs to the API key's organisation",
      tags: ['SSH'],
      body: closed({
        name: nameText('laptop'),
        public_key: Type.String({
          minLength: 1,
          maxLength: 20_000,
          examples: [EXAMPLE_PUBLIC_KEY],
        }),
      }),
      response: { 201: SshKey },
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
}

function registerKeyRevocation(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/me/ssh-keys/:id',
    config: { access: 'ssh_keys:write', people_only: true },
    schema: {
      operationId: 'revokeSshKey',
      summary: 'Revoke an SSH key',
      tags: ['SSH'],
      params: pathIds({ id: 'the SSH key' }),
      body: EmptyBody,
      response: { 204: NoContent },
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
 * Appends an audit entry in each organisation that the change of an SSH key concerns. The returned part of the outcome is
 * the entry of the organisation that the caller acts in; it is `unchanged` if the change does not concern that one.
 */
async function auditEverywhere(
  context: AppContext,
  tx: Tx,
  request: FastifyRequest,
  action: string,
  { row, org_ids }: ChangedKey,
) {
  const { org_id } = principalOf(request);
  const entry = { target: row.id, data: { name: row.name, fingerprint: row.fingerprint } };
  for (const each of org_ids) {
    if (each !== org_id) await appendAudit(context, tx, request, each, { action, ...entry });
  }
  return { ...entry, unchanged: !org_ids.includes(org_id) };
}
