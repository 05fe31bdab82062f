/**
 * Routes that list and end the caller's sessions, and the route that grants sudo: the caller enters the password again,
 * and the session may make destructive calls for five minutes.
 */
import { Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { setSudoCookie } from '../http/cookies.ts';
import { type App, mutate } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import {
  closed,
  EmptyBody,
  idOf,
  NoContent,
  named,
  pageOf,
  pageQuery,
  pathIds,
  Time,
} from '../http/schemas.ts';
import { lockedNow } from './lockout.ts';
import { requirePasswordLogin } from './login.ts';
import { PASSWORD_MAX_LENGTH } from './passwords.ts';
import { userOf } from './principal.ts';
import { grantSudo, verifyForSudo } from './sessions.ts';
import { deleteOtherSessions, deleteSession, findUser, listSessions } from './store.ts';

const Session = named('Session', {
  id: idOf('sess'),
  ip: Type.String({ examples: ['203.0.113.7'] }),
  user_agent: Type.String({ examples: ['Mozilla/5.0'] }),
  created_at: Time,
  last_seen_at: Time,
  ends_at: Time,
  current: Type.Boolean(),
});
const SudoGrantRequest = named('SudoGrantRequest', {
  password: Type.String({
    minLength: 1,
    maxLength: PASSWORD_MAX_LENGTH,
    examples: ['a long passphrase of yours'],
  }),
});
const SudoGrantResponse = named('SudoGrantResponse', { expires_at: Time });

export function registerSessions(
  app: App,
  context: AppContext,
  cursors: CursorSealer,
  limits: RateLimits,
): void {
  registerSudo(app, context, limits);
  registerList(app, context, cursors);
  registerEndings(app, context);
}

function registerSudo(app: App, context: AppContext, limits: RateLimits): void {
  const { db } = context;
  app.route({
    method: 'POST',
    url: '/v1/auth/sudo',
    config: { access: 'session_or_401', sets_cookie: true, errors: ['ACCOUNT_LOCKED'] },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'grantSudo',
      summary: 'Re-enter the password, which allows this session destructive calls for five minutes',
      tags: ['Accounts'],
      body: SudoGrantRequest,
      response: { 200: SudoGrantResponse },
    },
    handler: async (request, reply) => {
      const principal = principalOf(request);
      if (principal.credential.kind === 'session') {
        const user = await findUser(db, principal.credential.user_id);
        const locked = user && (await lockedNow(db, user.email));
        if (locked) throw locked;
      }
      limits.countAddress(request, reply);
      const proved_by = await verifyForSudo(db, principal, request.body.password, request.ip);
      const { body } = await mutate(
        context,
        request,
        reply,
        { action: 'auth.sudo', counts: false },
        async (tx) => ({
          status: 200,
          body: await grantSudo(tx, principal, proved_by),
          target: principal.credential.id,
        }),
      );
      setSudoCookie(reply, body.token);
      return { expires_at: rfc3339(body.expires_at) };
    },
  });
}

function registerList(app: App, context: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/auth/sessions',
    config: { access: 'session' },
    schema: {
      operationId: 'listSessions',
      summary: "List the caller's sessions",
      tags: ['Accounts'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Session) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'sessions',
        list: (before, count) => listSessions(context.db, userOf(principal), before, count),
        show: (row) => ({
          ...row,
          created_at: rfc3339(row.created_at),
          last_seen_at: rfc3339(row.last_seen_at),
          ends_at: rfc3339(row.ends_at),
          current: row.id === principal.credential.id,
        }),
      });
    },
  });
}

function registerEndings(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/auth/sessions',
    config: { access: 'session' },
    schema: {
      operationId: 'revokeOtherSessions',
      summary: "End all of the caller's sessions but this one",
      tags: ['Accounts'],
      body: EmptyBody,
      response: { 200: closed({ count: Type.Integer({ minimum: 0, examples: [2] }) }) },
    },
    handler: async (request, reply) => {
      const mutation = { action: 'auth.revoke_other_sessions' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const user_id = userOf(principal);
        const { credential } = principal;
        const keep = credential.kind === 'session' ? credential.id : null;
        const count = await deleteOtherSessions(tx, user_id, keep);
        return { status: 200, body: { count }, target: user_id, data: { count }, unchanged: count === 0 };
      });
      return body;
    },
  });
  app.route({
    method: 'DELETE',
    url: '/v1/auth/sessions/:id',
    config: { access: 'session' },
    schema: {
      operationId: 'revokeSession',
      summary: 'End a session',
      tags: ['Accounts'],
      params: pathIds({ id: 'the session' }),
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const { id } = request.params;
      await mutate(context, request, reply, { action: 'auth.revoke_session' }, async (tx, principal) => {
        if (!isId('sess', id) || !(await deleteSession(tx, userOf(principal), id)))
          throw new AppError('NOT_FOUND');
        return { status: 204, body: null, target: id };
      });
      return reply.status(204).send(null);
    },
  });
}
