/**
 * Routes by which a program gets a session without a password (ADR 52, after RFC 8628). The program asks for a login
 * and shows a code. A person who is logged in to the console compares the code and confirms it. Then the program takes
 * a session of that person, once.
 *
 *   asked ── confirm ──▶ confirmed ── take ──▶ gone, with a new session
 *     └── refuse, or ten minutes ──▶ gone      └── the confirming session ends ──▶ gone
 *
 * The program's two routes need no credential. The person's routes need a session.
 */
import { randomInt } from 'node:crypto';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import type { AuditLog } from '../audit/append.ts';
import type { AppContext } from '../context.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { principalOf } from '../http/access.ts';
import { readCookie, SUDO_COOKIE, setSudoCookie } from '../http/cookies.ts';
import { type App, mutate } from '../http/mutate.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import { closed, EmptyBody, NoContent, named, pathParameter, Time } from '../http/schemas.ts';
import { callerOf, SessionResponse, sessionAnswer } from './auth-routes.ts';
import { openVerified } from './login.ts';
import {
  confirmAsked,
  deleteAsked,
  findAsked,
  findDeviceLogin,
  insertDeviceLogin,
  takeConfirmed,
} from './login-store.ts';
import { type Caller, grantSudoTo, requireSudo, sessionOf } from './sessions.ts';
import { lockUser } from './store.ts';
import { DEVICE_PREFIX, hashToken, newToken, tokenPrefix } from './tokens.ts';

/** Between two questions of a program. */
const DEVICE_INTERVAL_S = 3;
/** The program is expected to log out, or to get itself an API key. */
const SESSION_LIFETIME_S = 3_600;

/** No vowels, so no words, and nothing that looks like a digit (RFC 8628, section 6.1). */
const LETTERS = 'BCDFGHJKLMNPQRSTVWXZ';
const HALF = 4;
const USER_CODE_PATTERN = `^[${LETTERS}]{${HALF}}-[${LETTERS}]{${HALF}}$`;

function newUserCode(): string {
  const half = () => Array.from({ length: HALF }, () => LETTERS[randomInt(LETTERS.length)]).join('');
  return `${half()}-${half()}`;
}

export async function askForDeviceLogin(
  db: Db,
  { sudo, ip, user_agent }: Caller & { readonly sudo: boolean },
) {
  const device_code = newToken(DEVICE_PREFIX);
  const user_code = newUserCode();
  const login = { device_hash: hashToken(device_code), user_code, sudo, ip, user_agent };
  return { device_code, user_code, ...(await insertDeviceLogin(db, login)) };
}

interface Parts {
  readonly db: Db;
  readonly audit: AuditLog;
  readonly quotas: QuotaLimits;
}

/**
 * Opens the session of a confirmed login. @throws AppError CONFLICT until a person has answered; UNAUTHENTICATED if it was
 * refused, taken before, or too old; QUOTA_EXCEEDED
 */
export async function takeDeviceLogin(
  { db, audit, quotas }: Parts,
  device_code: string,
  caller: Caller & { readonly request_id: string },
) {
  if (tokenPrefix(device_code) !== DEVICE_PREFIX) throw gone();
  const device_hash = hashToken(device_code);
  return transaction(db, async (tx) => {
    const found = await findDeviceLogin(tx, device_hash);
    if (!found) throw gone();
    const { confirmed_by, user_id, ends_at, sudo } = found;
    if (confirmed_by === null)
      throw new AppError('CONFLICT', { message: WAITS, retry_after_seconds: DEVICE_INTERVAL_S });
    if (user_id === null || ends_at === null) throw gone();
    // Locked first, as everything is that ends the user's sessions, and with them this row.
    await lockUser(tx, user_id);
    if (!(await takeConfirmed(tx, device_hash))) throw gone();
    const left_s = Math.max(1, Math.floor((ends_at.getTime() - Date.now()) / 1000));
    const from = { ...caller, by: confirmed_by, lifetime_s: Math.min(SESSION_LIFETIME_S, left_s) };
    const opened = await openVerified(tx, { audit, quotas }, user_id, from);
    const { session_id } = opened;
    return { ...opened, sudo: sudo ? await grantSudoTo(tx, { session_id, user_id }) : null };
  });
}

const WAITS = 'Nobody has confirmed this login yet. Open its URL in a browser, and confirm the code there.';

function gone(): AppError {
  return new AppError('UNAUTHENTICATED', {
    message: 'This login was refused, was used before, or took longer than ten minutes. Begin again.',
  });
}

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
