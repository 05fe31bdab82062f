/** Logins of programs that a person confirms in the console: ask and take without a credential, look and answer with a session. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import type { Tx } from '../db/pool.ts';
import { principalOf } from '../http/access.ts';
import { readCookie, SUDO_COOKIE, setSudoCookie } from '../http/cookies.ts';
import { type App, mutate } from '../http/mutate.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import { closed, EmptyBody, NoContent, named, pathParameter, Time } from '../http/schemas.ts';
import { callerOf, SessionResponse, sessionAnswer } from './auth-routes.ts';
import { askForDeviceLogin, DEVICE_INTERVAL_S, takeDeviceLogin, USER_CODE_PATTERN } from './device-login.ts';
import { confirmAsked, deleteAsked, findAsked } from './login-store.ts';
import { requireSudo, sessionOf } from './sudo.ts';

const EXAMPLE_CODE = 'BCDF-GHJK';
const UserCode = Type.String({
  description: 'Eight letters, for people to compare',
  examples: [EXAMPLE_CODE],
});
const UserCodeParams = Type.Object({ user_code: pathParameter('The code that the program shows') });
const Sudo = Type.Boolean({
  description: 'The session also gets a sudo grant; whoever confirms needs one, too',
  examples: [false],
});
const DeviceCode = Type.String({
  minLength: 1,
  maxLength: 200,
  description: 'A secret of the program',
  examples: ['berth_devc_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti'],
});
const DeviceLoginStart = named('DeviceLoginStart', {
  device_code: DeviceCode,
  user_code: UserCode,
  url: Type.String({
    description: 'Where a person confirms the code',
    examples: [`https://berth.example.org/device?code=${EXAMPLE_CODE}`],
  }),
  interval_seconds: Type.Integer({
    description: 'Wait so long between two questions',
    examples: [DEVICE_INTERVAL_S],
  }),
  expires_at: Time,
});
const DeviceLogin = named('DeviceLogin', {
  user_code: UserCode,
  ip: Type.String({ description: 'The address of the program', examples: ['203.0.113.7'] }),
  user_agent: Type.String({ description: 'What the program calls itself', examples: ['berth-cli (linux)'] }),
  sudo: Sudo,
  created_at: Time,
  expires_at: Time,
});

export function registerDeviceLogins(app: App, context: AppContext, limits: RateLimits): void {
  registerAsk(app, context, limits);
  registerTake(app, context, limits);
  registerLook(app, context, limits);
  registerAnswers(app, context, limits);
}

function registerAsk(app: App, context: AppContext, limits: RateLimits): void {
  app.route({
    method: 'POST',
    url: '/v1/auth/device-logins',
    config: { access: 'public', own_site: true },
    schema: {
      operationId: 'askForDeviceLogin',
      summary: 'Begin a login that a person confirms in the console',
      description:
        'For programs of people without a password, also on machines without a browser. Show `url` and `user_code`, then ask POST /v1/auth/device-logins/token.',
      tags: ['Accounts'],
      body: closed({ sudo: Type.Optional(Type.Boolean({ ...Sudo, default: false })) }),
      response: { 201: DeviceLoginStart },
    },
    handler: async (request, reply) => {
      limits.countAddress(request, reply);
      const { ip, user_agent } = callerOf(request);
      const asked = await askForDeviceLogin(context.db, { sudo: request.body.sudo ?? false, ip, user_agent });
      return reply
        .status(201)
        .header('cache-control', 'no-store')
        .send({
          ...asked,
          url: `${context.public_url}/device?code=${asked.user_code}`,
          interval_seconds: DEVICE_INTERVAL_S,
          expires_at: rfc3339(asked.expires_at),
        });
    },
  });
}

function registerTake(app: App, context: AppContext, limits: RateLimits): void {
  app.route({
    method: 'POST',
    url: '/v1/auth/device-logins/token',
    config: {
      access: 'public',
      own_site: true,
      sets_cookie: true,
      errors: ['UNAUTHENTICATED', 'CONFLICT', 'QUOTA_EXCEEDED'],
    },
    schema: {
      operationId: 'takeDeviceLogin',
      summary: 'Open the session of a confirmed login, once',
      description:
        '409 CONFLICT until a person has answered; 401 after a refusal, or ten minutes. The session lasts an hour at most.',
      tags: ['Accounts'],
      body: closed({ device_code: DeviceCode }),
      response: { 200: SessionResponse },
    },
    handler: async (request, reply) => {
      limits.countAddress(request, reply);
      const opened = await takeDeviceLogin(context, request.body.device_code, callerOf(request));
      if (opened.sudo) setSudoCookie(reply, opened.sudo.token);
      return sessionAnswer(context, reply, opened, { cookie: false });
    },
  });
}

function registerLook(app: App, context: AppContext, limits: RateLimits): void {
  app.route({
    method: 'GET',
    url: '/v1/auth/device-logins/:user_code',
    config: { access: 'session' },
    schema: {
      operationId: 'getDeviceLogin',
      summary: 'Who asks for a login',
      tags: ['Accounts'],
      params: UserCodeParams,
      response: { 200: DeviceLogin },
    },
    handler: async (request, reply) => {
      // Nobody guesses codes.
      limits.countAddress(request, reply);
      const found = await findAsked(context.db, userCode(request.params));
      if (!found) throw new AppError('NOT_FOUND');
      const { created_at, expires_at } = found;
      return { ...found, created_at: rfc3339(created_at), expires_at: rfc3339(expires_at) };
    },
  });
}

function registerAnswers(app: App, context: AppContext, limits: RateLimits): void {
  /** `answer` returns the login, if it still waits. */
  const answerAsked = async (
    request: FastifyRequest<{ Params: { user_code: string } }>,
    reply: FastifyReply,
    action: string,
    answer: (tx: Tx, user_code: string) => ReturnType<typeof deleteAsked>,
  ) => {
    limits.countAddress(request, reply);
    const user_code = userCode(request.params);
    const { user_id } = sessionOf(principalOf(request));
    await mutate(context, request, reply, { action }, async (tx) => {
      const answered = await answer(tx, user_code);
      if (!answered) throw new AppError('NOT_FOUND');
      const { ip, user_agent, sudo } = answered;
      return { status: 204, body: null, target: user_id, data: { asked_from: ip, user_agent, sudo } };
    });
  };
  app.route({
    method: 'POST',
    url: '/v1/auth/device-logins/:user_code/confirm',
    config: { access: 'session', errors: ['SUDO_REQUIRED'] },
    schema: {
      operationId: 'confirmDeviceLogin',
      summary: 'Let the program that shows this code log in as the caller',
      description: 'A login that asks for sudo needs a sudo grant of the caller.',
      tags: ['Accounts'],
      params: UserCodeParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const principal = principalOf(request);
      await answerAsked(request, reply, 'auth.confirm_device_login', async (tx, user_code) => {
        const confirmed = await confirmAsked(tx, user_code, sessionOf(principal).id);
        if (confirmed?.sudo) await requireSudo(tx, principal, readCookie(request, SUDO_COOKIE));
        return confirmed;
      });
      return reply.status(204).send(null);
    },
  });
  app.route({
    method: 'DELETE',
    url: '/v1/auth/device-logins/:user_code',
    config: { access: 'session' },
    schema: {
      operationId: 'refuseDeviceLogin',
      summary: 'Refuse a login',
      tags: ['Accounts'],
      params: UserCodeParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      await answerAsked(request, reply, 'auth.refuse_device_login', deleteAsked);
      return reply.status(204).send(null);
    },
  });
}

/** @throws AppError NOT_FOUND */
function userCode({ user_code }: { readonly user_code: string }): string {
  if (!new RegExp(USER_CODE_PATTERN).test(user_code)) throw new AppError('NOT_FOUND');
  return user_code;
}
