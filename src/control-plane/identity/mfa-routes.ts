/**
 * Routes of second factors and of the login by passkey. JSON that the browser's WebAuthn API reads or writes keeps the
 * names of that API (WebAuthn L3, section 5.1): `parseCreationOptionsFromJSON` takes `options`,
 * `parseRequestOptionsFromJSON` takes the answer of passkey/options, and the browser sends back the `toJSON()` of a
 * credential.
 */
import type { AuthenticationResponseJSON, RegistrationResponseJSON } from '@simplewebauthn/server';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type Static, Type } from 'typebox';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { isId, type MfaFactorId, type UserId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { BASE64URL_PATTERN, TOTP_PATTERN } from '../http/errors.ts';
import { type App, mutate } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import {
  closed,
  Email,
  EmptyBody,
  idOf,
  NoContent,
  named,
  nameText,
  nullable,
  pageOf,
  pageQuery,
  pathIds,
  SessionToken,
  Time,
} from '../http/schemas.ts';
import { requirePasswordLogin } from './login.ts';
import { User } from './me-routes.ts';
import { addFactor, confirmFactor, proveFactor, removeFactor } from './mfa/factors.ts';
import { FACTOR_TYPES, type FactorType } from './mfa/model.ts';
import { loginByPasskey, passkeyOptions } from './mfa/second-factor.ts';
import { listFactors } from './mfa/store.ts';
import { userOf } from './principal.ts';

const Base64url = (max: number) =>
  Type.String({ minLength: 1, maxLength: max, pattern: BASE64URL_PATTERN, examples: ['eyJ0eXBlIjoi'] });

/** Fields of the browser that we do not read are accepted. */
const OPEN = { additionalProperties: true } as const;
const ANSWER = {
  id: Base64url(1400),
  rawId: Base64url(1400),
  type: Type.Literal('public-key'),
  authenticatorAttachment: Type.Optional(nullable(Type.String({ maxLength: 64, examples: ['platform'] }))),
  clientExtensionResults: Type.Optional(Type.Object({}, OPEN)),
};
const RegistrationAnswer = Type.Unsafe<RegistrationResponseJSON>(
  closed({
    ...ANSWER,
    response: Type.Object({ clientDataJSON: Base64url(8192), attestationObject: Base64url(65_536) }, OPEN),
  }),
);
const AuthenticationAnswer = Type.Unsafe<AuthenticationResponseJSON>(
  closed({
    ...ANSWER,
    response: Type.Object(
      {
        clientDataJSON: Base64url(8192),
        authenticatorData: Base64url(8192),
        signature: Base64url(8192),
        userHandle: Type.Optional(nullable(Type.String({ maxLength: 128, examples: ['eyJ0eXBlIjoi'] }))),
      },
      OPEN,
    ),
  }),
);

const TotpCode = Type.String({
  maxLength: 7,
  pattern: TOTP_PATTERN,
  description: 'Six digits',
  examples: ['492039'],
});

/** The fields of a login that carry its second factor: at most one of them (`requireOneFactor`), so one is the example. */
export const SecondFactor = {
  totp_code: Type.Optional(TotpCode),
  recovery_code: Type.Optional(Type.String({ minLength: 1, maxLength: 64, examples: [] })),
  webauthn: Type.Optional(Type.Unsafe<AuthenticationResponseJSON>({ ...AuthenticationAnswer, examples: [] })),
};

const Options = Type.Unsafe<object>({ type: 'object', additionalProperties: true });
const FactorTypeSchema = Type.Unsafe<FactorType>({
  type: 'string',
  enum: [...FACTOR_TYPES],
  examples: ['totp'],
});
const EXAMPLE_NAME = 'phone';
const FactorName = Type.String({ examples: [EXAMPLE_NAME] });
const MfaFactor = named('MfaFactor', {
  id: idOf('mfa'),
  type: FactorTypeSchema,
  name: FactorName,
  created_at: Time,
  confirmed_at: nullable(Time),
  last_used_at: nullable(Time),
});
const CreateMfaFactorRequest = closed({ type: FactorTypeSchema, name: nameText(EXAMPLE_NAME) });
const CreateMfaFactorResponse = Type.Union([
  closed({
    id: idOf('mfa'),
    type: Type.Literal('totp'),
    name: FactorName,
    secret: Type.String({
      description: 'Base32, shown only once',
      examples: ['JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP'],
    }),
    otpauth_url: Type.String({
      description: 'The secret as the URL for a QR code',
      examples: [
        'otpauth://totp/Berth:ada%40example.org?secret=JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP&issuer=Berth',
      ],
    }),
  }),
  closed({ id: idOf('mfa'), type: Type.Literal('webauthn'), name: FactorName, options: Options }),
]);
const VerifyMfaFactorRequest = Type.Union([closed({ code: TotpCode }), RegistrationAnswer]);
const VerifyMfaFactorResponse = closed({
  recovery_codes: Type.Union([Type.Array(Type.String()), Type.Null()], {
    description:
      'Shown only once; each is valid for one login. null: the account already has codes, which stay valid',
    examples: [['k3v9-7q2m-x8rw-p5tz', 'b6dn-4h8s-y2cj-w9fa']],
  }),
});
const LoginResponse = named('SessionResponse', {
  user: User,
  session_token: SessionToken,
  expires_at: Time,
});

const FactorParams = pathIds({ id: 'the factor' });

type FactorRow = Awaited<ReturnType<typeof listFactors>>[number];

function factorView({
  id,
  name,
  type,
  created_at,
  confirmed_at,
  last_used_at,
}: FactorRow): Static<typeof MfaFactor> {
  const time = (value: Date | null) => (value === null ? null : rfc3339(value));
  const times = { confirmed_at: time(confirmed_at), last_used_at: time(last_used_at) };
  return { id, name, type, created_at: rfc3339(created_at), ...times };
}

function factorIdOf(id: string): MfaFactorId {
  if (!isId('mfa', id)) throw new AppError('NOT_FOUND');
  return id;
}

export function registerMfa(
  app: App,
  context: AppContext,
  cursors: CursorSealer,
  limits: RateLimits,
  finishLogin: FinishLogin,
): void {
  registerFactors(app, context, cursors);
  registerVerify(app, context);
  registerRemove(app, context);
  registerPasskeyLogin(app, context, limits, finishLogin);
}

function registerFactors(app: App, context: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/me/mfa/factors',
    config: { access: 'session' },
    schema: {
      operationId: 'listMfaFactors',
      summary: "List the caller's second factors",
      tags: ['MFA'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(MfaFactor) },
    },
    handler: (request) => {
      const principal = principalOf(request);
      return pageOfList(cursors, principal, request, {
        route: 'mfa-factors',
        list: (before, count) => listFactors(context.db, userOf(principal), before, count),
        show: factorView,
      });
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/me/mfa/factors',
    // A factor outlives its session and a password reset, so a stolen session must not be able to add one.
    config: { access: 'session', sudo: true, errors: ['CONFLICT', 'QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'addMfaFactor',
      summary: 'Add a second factor; confirm it within the hour',
      description: 'It counts against the quota `factors` of the account.',
      tags: ['MFA'],
      body: CreateMfaFactorRequest,
      response: { 201: CreateMfaFactorResponse },
    },
    handler: async (request, reply) => {
      reply.header('cache-control', 'no-store');
      const { body } = await mutate(context, request, reply, { action: 'mfa.add' }, async (tx, principal) => {
        const added = await addFactor(tx, context, userOf(principal), request.body);
        return { status: 201, body: added, target: added.id, data: { type: added.type, name: added.name } };
      });
      return reply.status(201).send(body);
    },
  });
}

function registerVerify(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/me/mfa/factors/:id/verify',
    config: { access: 'session', errors: ['CONFLICT'] },
    schema: {
      operationId: 'verifyMfaFactor',
      summary: "Confirm a second factor with its code, or with the browser's answer to its options",
      description: 'It needs no sudo grant, because the call that added the factor needed one.',
      tags: ['MFA'],
      params: FactorParams,
      body: VerifyMfaFactorRequest,
      response: { 200: VerifyMfaFactorResponse },
    },
    handler: async (request, reply) => {
      const id = factorIdOf(request.params.id);
      const proof = await proveFactor(context.db, context, userOf(principalOf(request)), id, request.body);
      reply.header('cache-control', 'no-store');
      const mutation = { action: 'mfa.confirm' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const confirmed = await confirmFactor(tx, userOf(principal), id, proof, request.ip);
        return { status: 200, body: confirmed, target: id };
      });
      return reply.status(200).send(body);
    },
  });
}

function registerRemove(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/me/mfa/factors/:id',
    config: { access: 'session', sudo: true },
    schema: {
      operationId: 'removeMfaFactor',
      summary: 'Remove a second factor; with the last one the recovery codes are removed',
      tags: ['MFA'],
      params: FactorParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const id = factorIdOf(request.params.id);
      await mutate(context, request, reply, { action: 'mfa.remove' }, async (tx, principal) => {
        const { type, name } = await removeFactor(tx, userOf(principal), id, request.ip);
        return { status: 204, body: null, target: id, data: { type, name } };
      });
      return reply.status(204).send(null);
    },
  });
}

/** Opens the session and sets the refresh cookie, as login does. */
export type FinishLogin = (
  request: FastifyRequest,
  reply: FastifyReply,
  user_id: UserId,
) => Promise<Static<typeof LoginResponse>>;

function registerPasskeyLogin(
  app: App,
  context: AppContext,
  limits: RateLimits,
  finishLogin: FinishLogin,
): void {
  app.route({
    method: 'POST',
    url: '/v1/auth/passkey/options',
    config: { access: 'public', errors: ['CONFLICT', 'FORBIDDEN'] },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'passkeyOptions',
      summary: 'Get the options for a login with a passkey, alone or after the password',
      tags: ['MFA'],
      body: closed({ email: Type.Optional(Email) }),
      response: { 200: Options },
    },
    handler: async (request, reply) => {
      limits.countAddress(request, reply);
      reply.header('cache-control', 'no-store');
      return passkeyOptions(context.db, context, request.body.email ?? null);
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/auth/passkey',
    config: {
      access: 'public',
      own_site: true,
      sets_cookie: true,
      errors: ['UNAUTHENTICATED', 'QUOTA_EXCEEDED'],
    },
    onRequest: requirePasswordLogin(context),
    schema: {
      operationId: 'loginByPasskey',
      summary: 'Open a session with a passkey alone',
      tags: ['MFA'],
      body: AuthenticationAnswer,
      response: { 200: LoginResponse },
    },
    handler: async (request, reply) => {
      limits.countAddress(request, reply);
      const user_id = await loginByPasskey(context.db, context, request.body);
      reply.header('cache-control', 'no-store');
      return finishLogin(request, reply, user_id);
    },
  });
}
