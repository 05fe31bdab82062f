/** Opening and ending sessions: register, login, refresh, logout, passwords. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import {
  changePassword,
  prepareNewPassword,
  refuseUninvited,
  register,
} from '../../accounts/change-account.ts';
import { confirmPasswordReset, requestPasswordReset } from '../../accounts/reset-password.ts';
import { lockedNow } from '../../auth/lockout.ts';
import { finishLogin, login } from '../../auth/login.ts';
import { requireOneFactor, verifySecondFactor } from '../../auth/mfa/second-factor.ts';
import { PASSWORD_MAX_LENGTH, PASSWORD_MIN_LENGTH } from '../../auth/passwords.ts';
import { userOf } from '../../auth/principal.ts';
import { REPLACED_GRACE_S } from '../../auth/refresh-store.ts';
import { RefreshTokens } from '../../auth/refresh-tokens.ts';
import { refreshSession } from '../../auth/sessions.ts';
import { deleteSession, firstOrganisation } from '../../auth/store.ts';
import { refuseWhileLocked } from '../../auth/verify-account.ts';
import type { Tx } from '../../db/pool.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { AppError } from '../../lib/errors.ts';
import type { SessionId, UserId } from '../../lib/ids.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import { appendAuditOf } from '../append-audit.ts';
import type { AppContext } from '../context.ts';
import { clearRefreshCookie, REFRESH_COOKIE, readCookie, setRefreshCookie } from '../cookies.ts';
import { mutate } from '../mutate.ts';
import { NOTHING } from '../nothing.ts';
import { peek } from '../path-organisation.ts';
import type { RateLimits } from '../rate-limits.ts';
import { closed, Email, EmptyBody, errors, Name, NoContent, named, Time } from '../schemas.ts';
import { User, userView } from './me.ts';
import { SecondFactor } from './mfa.ts';

const NewPassword = Type.String({
  minLength: PASSWORD_MIN_LENGTH,
  maxLength: PASSWORD_MAX_LENGTH,
  description: `${PASSWORD_MIN_LENGTH} to ${PASSWORD_MAX_LENGTH} characters; none of the 10,000 most used passwords, and not made of the account's e-mail address`,
});
const GivenPassword = Type.String({ minLength: 1, maxLength: PASSWORD_MAX_LENGTH });
const MailToken = Type.String({ minLength: 1, maxLength: 200 });

const RegisterRequest = closed({
  email: Email,
  password: NewPassword,
  name: Type.Optional(Name),
  invitation_token: Type.Optional(MailToken),
});
const LoginRequest = closed({ email: Email, password: GivenPassword, ...SecondFactor });
const SessionResponse = named('SessionResponse', {
  user: User,
  session_token: Type.String(),
  expires_at: Time,
});
const RefreshResponse = closed({ session_token: Type.String(), expires_at: Time });

const PUBLIC = [
  'INVALID_REQUEST',
  'FORBIDDEN',
  'UNSUPPORTED_MEDIA_TYPE',
  'RATE_LIMITED',
  'UNAVAILABLE',
  'INTERNAL',
] as const;

function callerOf(request: FastifyRequest) {
  const user_agent = (request.headers['user-agent'] ?? '').slice(0, 255);
  return { ip: request.ip, user_agent, request_id: request.id };
}

/** Opens a session for who has proved themselves, and answers with it. */
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

function sessionAnswer(context: AppContext, reply: FastifyReply, opened: Opened) {
  reply.header('cache-control', 'no-store');
  setRefreshCookie(reply, opened.refresh_token);
  return {
    user: userView(context, opened.user),
    session_token: opened.session_token,
    expires_at: rfc3339(opened.expires_at),
  };
}

export function registerAuth(app: App, context: AppContext, limits: RateLimits): void {
  registerOpening(app, context, limits);
  registerSession(app, context, limits);
  registerPasswords(app, context, limits);
}

function registerOpening(app: App, context: AppContext, limits: RateLimits): void {
  const { db } = context;
  app.route({
    method: 'POST',
    url: '/v1/auth/register',
    config: { access: 'public', own_site: true },
    // Before it is refused: what is not let in counts too.
    preValidation: async (request, reply) => {
      await limits.countAddress(request, reply);
      if (peek(request.body, 'invitation_token') === undefined) refuseUninvited(context.signups);
    },
    schema: {
      operationId: 'register',
      summary: 'Make an account, where sign-ups are open or with an invitation',
      tags: ['Accounts'],
      security: [],
      body: RegisterRequest,
      response: { 201: SessionResponse, ...errors(...PUBLIC, 'CONFLICT', 'QUOTA_EXCEEDED') },
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
    config: { access: 'public', own_site: true },
    schema: {
      operationId: 'login',
      summary: 'Open a session',
      description:
        'An account has as many live sessions as its quota `sessions` says. One past it is refused: end one, or reset the password, which ends all.',
      tags: ['Accounts'],
      security: [],
      body: LoginRequest,
      response: {
        200: SessionResponse,
        ...errors(...PUBLIC, 'UNAUTHENTICATED', 'MFA_REQUIRED', 'ACCOUNT_LOCKED', 'QUOTA_EXCEEDED'),
      },
    },
    handler: async (request, reply) => {
      const { email, password, ...factor } = request.body;
      requireOneFactor(factor);
      const locked = await lockedNow(db, email);
      if (locked) throw locked;
      await limits.countAddress(request, reply);
      const parts = {
        db,
        audit: context.audit,
        quotas: context.quotas,
        verifySecondFactor: (user_id: UserId) => verifySecondFactor(context, user_id, factor),
      };
      return sessionAnswer(context, reply, await login(parts, { email, password, ...callerOf(request) }));
    },
  });
}

function registerSession(app: App, context: AppContext, limits: RateLimits): void {
  const { db } = context;
  const tokens = new RefreshTokens(context.secret_key);
  app.route({
    method: 'POST',
    url: '/v1/auth/refresh',
    config: { access: 'public', own_site: true },
    schema: {
      operationId: 'refresh',
      summary: `A new session token, by the cookie ${REFRESH_COOKIE}, which is replaced`,
      description: `A replaced cookie is taken for ${REPLACED_GRACE_S} s more. Later it returns 401 and ends its session.`,
      tags: ['Accounts'],
      security: [],
      body: EmptyBody,
      response: { 200: RefreshResponse, ...errors(...PUBLIC, 'UNAUTHENTICATED') },
    },
    handler: async (request, reply) => {
      await limits.countAddress(request, reply);
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
    config: { access: 'session' },
    schema: {
      operationId: 'logout',
      summary: 'End this session',
      tags: ['Accounts'],
      body: EmptyBody,
      response: { 204: NoContent, ...errors(...PUBLIC, 'UNAUTHENTICATED') },
    },
    handler: async (request, reply) => {
      await mutate(context, request, reply, { action: 'auth.logout' }, async (tx, { credential }) => {
        if (credential.kind === 'session') await deleteSession(tx, credential.user_id, credential.id);
        return { status: 204, body: null, target: credential.id };
      });
      clearRefreshCookie(reply);
      return reply.status(204).send(null);
    },
  });
}

/** A session that ended because its replaced cookie came again: by whom is not known. */
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

function registerPasswords(app: App, context: AppContext, limits: RateLimits): void {
  const { db, mailbox, public_url, log } = context;
  app.route({
    method: 'POST',
    url: '/v1/auth/password',
    config: { access: 'session' },
    schema: {
      operationId: 'changePassword',
      summary: 'Change the password; the other sessions end',
      tags: ['Accounts'],
      body: closed({ current_password: GivenPassword, new_password: NewPassword }),
      response: { 204: NoContent, ...errors(...PUBLIC, 'UNAUTHENTICATED', 'ACCOUNT_LOCKED') },
    },
    handler: async (request, reply) => {
      const principal = principalOf(request);
      await refuseWhileLocked(db, userOf(principal));
      await limits.countAddress(request, reply);
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
  app.route({
    method: 'POST',
    url: '/v1/auth/password-reset',
    config: { access: 'public' },
    schema: {
      operationId: 'requestPasswordReset',
      summary: 'Send a reset token to the address, if it has an account',
      tags: ['Accounts'],
      security: [],
      body: closed({ email: Email }),
      response: { 202: NoContent, ...errors(...PUBLIC) },
    },
    handler: async (request, reply) => {
      await limits.countAddress(request, reply);
      // Not awaited: neither the answer nor its time tells whether there is such an account.
      requestPasswordReset(db, mailbox, public_url, request.body.email).catch((error: unknown) =>
        log.error({ err: error }, 'a password reset could not be begun'),
      );
      return reply.status(202).send(NOTHING);
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/auth/password-reset/confirm',
    config: { access: 'public' },
    schema: {
      operationId: 'confirmPasswordReset',
      summary: 'Set a new password by the token of the mail; every session ends',
      description:
        'The notification and mail password.changed say how many API keys, SSH keys and factors remain (data.remaining). Of an account whose address was not confirmed all are removed, and the address counts as confirmed.',
      tags: ['Accounts'],
      security: [],
      body: closed({
        token: MailToken,
        new_password: NewPassword,
        revoke_all: Type.Optional(
          Type.Boolean({ description: 'Also remove every API key, SSH key and factor', default: false }),
        ),
      }),
      response: { 204: NoContent, ...errors(...PUBLIC) },
    },
    handler: async (request, reply) => {
      await limits.countAddress(request, reply);
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
                data: { fingerprint: row.fingerprint },
              });
          }
        },
      );
      return reply.status(204).send(null);
    },
  });
}
