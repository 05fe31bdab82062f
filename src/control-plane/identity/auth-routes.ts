/**
 * Routes that open, refresh and end sessions (register, login, refresh, logout), and that change or reset a password.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { SessionId, UserId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import type { Tx } from '../db/pool.ts';
import { peek, principalOf } from '../http/access.ts';
import { clearRefreshCookie, REFRESH_COOKIE, readCookie, setRefreshCookie } from '../http/cookies.ts';
import { type App, appendAuditOf, mutate } from '../http/mutate.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import {
  closed,
  Email,
  EmptyBody,
  MailToken,
  NO_BODY,
  NoContent,
  named,
  nameText,
  SessionToken,
  Time,
} from '../http/schemas.ts';
import {
  changePassword,
  prepareNewPassword,
  refuseUninvited,
  refuseWhileLocked,
  register,
} from './accounts.ts';
import { lockedNow } from './lockout.ts';
import { finishLogin, loginByPassword, requirePasswordLogin } from './login.ts';
import { REPLACED_GRACE_S } from './login-store.ts';
import { User, userView } from './me-routes.ts';
import { requireOneFactor, verifySecondFactor } from './mfa/second-factor.ts';
import { SecondFactor } from './mfa-routes.ts';
import { PASSWORD_MAX_LENGTH, PASSWORD_MIN_LENGTH } from './passwords.ts';
import { userOf } from './principal.ts';
import { confirmPasswordReset, requestPasswordReset } from './reset-password.ts';
import { RefreshTokens, refreshSession } from './sessions.ts';
import { deleteSession, firstOrganisation } from './store.ts';

const NewPassword = Type.String({
  minLength: PASSWORD_MIN_LENGTH,
  maxLength: PASSWORD_MAX_LENGTH,
  description: `${PASSWORD_MIN_LENGTH} to ${PASSWORD_MAX_LENGTH} characters; none of the 10,000 most used passwords, and not made of the account's e-mail address`,
  examples: ['another long passphrase'],
});
const GivenPassword = Type.String({
  minLength: 1,
  maxLength: PASSWORD_MAX_LENGTH,
  examples: ['a long passphrase of yours'],
});

const RegisterRequest = closed({
  email: Email,
  password: NewPassword,
  name: Type.Optional(nameText('Ada Lovelace')),
  invitation_token: Type.Optional(Type.String({ ...MailToken, examples: [] })),
});
const LoginRequest = closed({ email: Email, password: GivenPassword, ...SecondFactor });
export const SessionResponse = named('SessionResponse', {
  user: User,
  session_token: SessionToken,
  expires_at: Time,
});
const RefreshResponse = closed({ session_token: SessionToken, expires_at: Time });

export function callerOf(request: FastifyRequest) {
  const user_agent = (request.headers['user-agent'] ?? '').slice(0, 255);
  return { ip: request.ip, user_agent, request_id: request.id };
}

/** Opens a session for an authenticated user, and answers with it. */
export async function answerWithSession(
  context: AppContext,
  request: FastifyRequest,
  reply: FastifyReply,
  user_id: UserId,
) {
  const opened = await finishLogin(context, user_id, callerOf(request));
  return sessionAnswer(context, reply, opened);
}

type Opened = Awaited<ReturnType<typeof finishLogin>>;

/** @param options without `cookie` the session cannot be renewed */
export function sessionAnswer(
  context: AppContext,
  reply: FastifyReply,
  opened: Opened,
  { cookie } = { cookie: true },
) {
  reply.header('cache-control', 'no-store');
  if (cookie) setRefreshCookie(reply, opened.refresh_token);
  return {
    user: userView(context, opened.user),
    session_token: opened.session_token,
    expires_at: rfc3339(opened.expires_at),
  };
}

export function registerAuth(app: App, context: AppContext, limits: RateLimits): void {
  registerOpening(app, context, limits);
  registerSession(app, context, limits);
  registerPasswordChange(app, context, limits);
  registerResetRequest(app, context, limits);
  registerResetConfirmation(app, context, limits);
}

function registerOpening(app: App, context: AppContext, limits: RateLimits): void {
  const { db } = context;
  app.route({
    method: 'POST',
    url: '/v1/auth/register',
    config: { access: 'public', own_site: true, sets_cookie: true, errors: ['CONFLICT', 'QUOTA_EXCEEDED'] },
    // Counted before any refusal: refused requests count too.
    preValidation: async (request, reply) => {
      limits.countAddress(request, reply);
      if (peek(request.body, 'invitation_token') === undefined) refuseUninvited(context.signups);
    },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'register',
      summary: 'Create an account; needs open sign-ups or an invitation',
      tags: ['Accounts'],
      body: RegisterRequest,
      response: { 201: SessionResponse },
    },
    handler: async (request, reply) => {
      const { email, password, name, invitation_token } = request.body;
      const wanted = { email, password, name: name ?? '', invitation_token: invitation_token ?? null };
      const user_id = await register(context, wanted, async (tx, actor, org_id) =>
        appendAuditOf(context, tx, request, org_id, { actor, action: 'invitation.accept', target: actor }),
      );
      return reply.status(201).send(await answerWithSession(context, request, reply, user_id));
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/auth/login',
    config: {
      access: 'public',
      own_site: true,
      sets_cookie: true,
      errors: ['UNAUTHENTICATED', 'MFA_REQUIRED', 'ACCOUNT_LOCKED', 'QUOTA_EXCEEDED'],
    },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'login',
      summary: 'Open a session',
      description:
        'The quota `sessions` limits the live sessions of an account. A login beyond it is refused: end a session, or reset the password, which ends all.',
      tags: ['Accounts'],
      body: LoginRequest,
      response: { 200: SessionResponse },
    },
    handler: async (request, reply) => {
      const { email, password, ...factor } = request.body;
      requireOneFactor(factor);
      const locked = await lockedNow(db, email);
      if (locked) throw locked;
      limits.countAddress(request, reply);
      const parts = {
        db,
        audit: context.audit,
        quotas: context.quotas,
        verifySecondFactor: (user_id: UserId) => verifySecondFactor(context, user_id, factor),
      };
      return sessionAnswer(
        context,
        reply,
        await loginByPassword(parts, { email, password, ...callerOf(request) }),
      );
    },
  });
}

function registerSession(app: App, context: AppContext, limits: RateLimits): void {
  const { db } = context;
  const tokens = new RefreshTokens(context.root_key);
  app.route({
    method: 'POST',
    url: '/v1/auth/refresh',
    config: { access: 'public', own_site: true, sets_cookie: true, errors: ['UNAUTHENTICATED'] },
    schema: {
      operationId: 'refresh',
      summary: `Get a new session token with the cookie ${REFRESH_COOKIE}, which is replaced`,
      description: `A replaced cookie is accepted for another ${REPLACED_GRACE_S} s. Later it returns 401 and ends its session.`,
      tags: ['Accounts'],
      body: EmptyBody,
      response: { 200: RefreshResponse },
    },
    handler: async (request, reply) => {
      limits.countAddress(request, reply);
      const cookie = readCookie(request, REFRESH_COOKIE);
      if (cookie === undefined) throw new AppError('UNAUTHENTICATED');
      const refreshed = await refreshSession(db, tokens, cookie, (tx, session) =>
        noteReuse(context, tx, request, session),
      );
      const { session_token, expires_at, refresh_token } = refreshed;
      reply.header('cache-control', 'no-store');
      if (refresh_token !== null) setRefreshCookie(reply, refresh_token);
      return { session_token, expires_at: rfc3339(expires_at) };
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/auth/logout',
    config: { access: 'session', sets_cookie: true },
    schema: {
      operationId: 'logout',
      summary: 'End this session',
      tags: ['Accounts'],
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      await mutate(
        context,
        request,
        reply,
        { action: 'auth.logout', counts: false },
        async (tx, { credential }) => {
          if (credential.kind === 'session') await deleteSession(tx, credential.user_id, credential.id);
          return { status: 204, body: null, target: credential.id };
        },
      );
      clearRefreshCookie(reply);
      return reply.status(204).send(null);
    },
  });
}

/** Notes a session that ended because its replaced cookie was used again, by an unknown caller. */
async function noteReuse(
  { audit }: AppContext,
  tx: Tx,
  request: FastifyRequest,
  { id, user_id }: { readonly id: SessionId; readonly user_id: UserId },
): Promise<void> {
  const org_id = await firstOrganisation(tx, user_id);
  if (org_id === null) return;
  const { ip, request_id, user_agent } = callerOf(request);
  const entry = { actor: 'system', action: 'auth.end_reused_session', target: id };
  await audit.append(tx, org_id, { ...entry, ip, request_id, data: { user_id, user_agent } });
}

function registerPasswordChange(app: App, context: AppContext, limits: RateLimits): void {
  const { db } = context;
  app.route({
    method: 'POST',
    url: '/v1/auth/password',
    config: { access: 'session', errors: ['ACCOUNT_LOCKED'] },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'changePassword',
      summary: 'Change the password; the other sessions end',
      tags: ['Accounts'],
      body: closed({ current_password: GivenPassword, new_password: NewPassword }),
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const principal = principalOf(request);
      await refuseWhileLocked(db, userOf(principal));
      limits.countAddress(request, reply);
      const prepared = await prepareNewPassword(db, principal, request.body, request.ip);
      const action = 'auth.change_password';
      await mutate(context, request, reply, { action }, async (tx) => ({
        status: 204,
        body: null,
        target: await changePassword(tx, principal, prepared),
      }));
      return reply.status(204).send(null);
    },
  });
}

function registerResetRequest(app: App, context: AppContext, limits: RateLimits): void {
  const { db, mailbox, public_url, log } = context;
  app.route({
    method: 'POST',
    url: '/v1/auth/password-reset',
    config: { access: 'public', errors: ['FORBIDDEN'] },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'requestPasswordReset',
      summary: 'Mail a reset token to the address, if it has an account',
      tags: ['Accounts'],
      body: closed({ email: Email }),
      response: { 202: NoContent },
    },
    handler: async (request, reply) => {
      limits.countAddress(request, reply);
      // Not awaited: neither the answer nor its duration may show whether the account exists.
      requestPasswordReset(db, mailbox, public_url, request.body.email).catch((error: unknown) =>
        log.error({ err: error }, 'a password reset could not be started'),
      );
      return reply.status(202).send(NO_BODY);
    },
  });
}

function registerResetConfirmation(app: App, context: AppContext, limits: RateLimits): void {
  app.route({
    method: 'POST',
    url: '/v1/auth/password-reset/confirm',
    config: { access: 'public', errors: ['FORBIDDEN'] },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'confirmPasswordReset',
      summary: 'Set a new password with the mailed token; every session ends',
      description:
        'The notification and the mail `password.changed` give the number of API keys, SSH keys and factors that remain (`data.remaining`). If the address was not confirmed, all of them are removed, and the address is then confirmed.',
      tags: ['Accounts'],
      body: closed({
        token: MailToken,
        new_password: NewPassword,
        revoke_all: Type.Optional(
          Type.Boolean({
            description: 'Also remove every API key, SSH key and factor',
            default: false,
            examples: [false],
          }),
        ),
      }),
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      limits.countAddress(request, reply);
      await confirmPasswordReset(
        context,
        request.body,
        async (tx, { user_id: actor, removed, remaining, ssh_keys }) => {
          const org_id = await firstOrganisation(tx, actor);
          const data = { removed, remaining };
          const entry = { actor, action: 'auth.reset_password', target: actor, data };
          if (org_id !== null) await appendAuditOf(context, tx, request, org_id, entry);
          for (const { row, org_ids } of ssh_keys) {
            const revoked = { actor, action: 'ssh_key.revoke', target: row.id };
            for (const each of org_ids)
              await appendAuditOf(context, tx, request, each, {
                ...revoked,
                data: { name: row.name, fingerprint: row.fingerprint },
              });
          }
        },
      );
      return reply.status(204).send(null);
    },
  });
}
