/**
 * Routes of the login by OpenID Connect. `login` redirects a browser to the provider, and `callback` receives it from
 * there; both need no credential. `sudo` begins a sudo grant by a new login at the provider, and needs a session.
 *
 * A cookie binds the callback to the browser that began. The callback always redirects to the console. There,
 * `#oidc=<code>` names the outcome of a failure or of a sudo grant, and the console has the text.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { AppError } from '../../shared/errors.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { AppContext } from '../context.ts';
import { transaction } from '../db/pool.ts';
import { principalOf } from '../http/access.ts';
import {
  clearFlowCookie,
  FLOW_COOKIE,
  readCookie,
  setFlowCookie,
  setRefreshCookie,
  setSudoCookie,
} from '../http/cookies.ts';
import { type App, appendAuditOf } from '../http/mutate.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import { closed, named } from '../http/schemas.ts';
import { callerOf } from './auth-routes.ts';
import { LoginRefused, loginAtProvider } from './login-at-provider.ts';
import { findIdentity } from './oidc/identity-store.ts';
import {
  type Flow,
  type Flows,
  newFlow,
  type OidcProvider,
  ownPath,
  ProviderError,
  type ProviderProof,
} from './oidc/provider.ts';
import { grantSudoTo, sessionOf } from './sessions.ts';
import { firstOrganisation } from './store.ts';

const ReturnTo = Type.Optional(
  Type.String({
    maxLength: 512,
    description: 'The path of the console that follows; any other address leads to `/`',
    examples: ['/instances'],
  }),
);
const SudoStart = named('OidcSudoStart', {
  url: Type.String({
    description: 'Where the browser goes; valid for ten minutes',
    examples: ['https://id.example.org/authorize?client_id=berth&prompt=login&max_age=0'],
  }),
});
const Redirect = Type.Null({ description: 'A redirect; `#oidc=…` in its address names a problem' });
/** Providers add parameters of their own. */
const CallbackQuery = Type.Object(
  {
    code: Type.Optional(Type.String({ maxLength: 8192 })),
    state: Type.Optional(Type.String({ maxLength: 1024 })),
    error: Type.Optional(Type.String({ maxLength: 256 })),
  },
  { additionalProperties: true },
);

/** The clocks of Berth and the provider may differ by so much. */
const SKEW_S = 30;

/** What the console's page then tells. */
type Ending =
  | 'confirmed'
  | 'expired'
  | 'refused'
  | 'unreachable'
  | 'failed'
  | 'other_person'
  | 'not_repeated'
  | 'session_ended'
  | 'too_many_sessions'
  | 'too_many_requests'
  | LoginRefused['refusal'];

interface Parts {
  readonly context: AppContext;
  readonly provider: OidcProvider;
  readonly flows: Flows;
  readonly identities: Sealer;
}

export function registerOidc(app: App, context: AppContext, limits: RateLimits): void {
  registerBegin(app, context, limits);
  registerReturn(app, context, limits);
  registerSudoStart(app, context, limits);
}

/** @throws AppError NOT_FOUND where no provider is set */
function partsOf(context: AppContext): Parts {
  const { oidc } = context;
  if (oidc === null) throw new AppError('NOT_FOUND', { message: 'No OpenID provider is set here.' });
  return { context, ...oidc };
}

function registerBegin(app: App, context: AppContext, limits: RateLimits): void {
  app.route({
    method: 'GET',
    url: '/v1/auth/oidc/login',
    config: { access: 'public', sets_cookie: true, errors: ['NOT_FOUND'] },
    schema: {
      operationId: 'beginOidcLogin',
      summary: 'Send a browser to the OpenID provider to log in',
      tags: ['Accounts'],
      querystring: closed({ return_to: ReturnTo }),
      response: { 303: Redirect },
    },
    handler: async (request, reply) => {
      const parts = partsOf(context);
      return endAtConsole(context, request, reply, '/login', async () => {
        limits.countAddress(request, reply);
        const flow = newFlow(null, ownPath(request.query.return_to, context.public_url));
        return go(reply, (await begin(parts, reply, flow)).href);
      });
    },
  });
}

async function begin({ provider, flows }: Parts, reply: FastifyReply, flow: Flow): Promise<URL> {
  const url = await provider.authorisationUrl(flow, flow.sudo !== null);
  setFlowCookie(reply, flows.seal(flow));
  return url;
}

function registerSudoStart(app: App, context: AppContext, limits: RateLimits): void {
  app.route({
    method: 'POST',
    url: '/v1/auth/oidc/sudo',
    config: { access: 'session_or_401', own_site: true, sets_cookie: true, errors: ['NOT_FOUND'] },
    schema: {
      operationId: 'beginOidcSudo',
      summary: 'Begin a sudo grant by a new login at the OpenID provider',
      description:
        'The browser goes to `url` and comes back with the cookie of POST /v1/auth/sudo. The provider must ask the person again (`prompt=login`, `max_age=0`) and say when it did (`auth_time`).',
      tags: ['Accounts'],
      body: closed({ return_to: ReturnTo }),
      response: { 200: SudoStart },
    },
    handler: async (request, reply) => {
      const parts = partsOf(context);
      limits.countAddress(request, reply);
      const { id: session_id, user_id } = sessionOf(principalOf(request));
      const flow = newFlow({ session_id, user_id }, ownPath(request.body.return_to, context.public_url));
      try {
        return { url: (await begin(parts, reply, flow)).href };
      } catch (error) {
        if (!(error instanceof ProviderError)) throw error;
        throw new AppError('UNAVAILABLE', {
          message: `${parts.provider.name} does not answer. Try again shortly.`,
          internal: error.message,
          retry_after_seconds: 5,
        });
      }
    },
  });
}

function registerReturn(app: App, context: AppContext, limits: RateLimits): void {
  app.route({
    method: 'GET',
    url: '/v1/auth/oidc/callback',
    config: { access: 'public', sets_cookie: true, errors: ['NOT_FOUND'] },
    schema: {
      operationId: 'finishOidcLogin',
      summary: 'Where the OpenID provider sends a browser back',
      description:
        'Opens a session and sets the refresh cookie, or grants sudo. Register this address at the provider.',
      tags: ['Accounts'],
      querystring: CallbackQuery,
      response: { 303: Redirect },
    },
    handler: async (request, reply) => {
      const parts = partsOf(context);
      const cookie = readCookie(request, FLOW_COOKIE);
      const flow = cookie === undefined ? null : parts.flows.open(cookie);
      const fits = flow !== null && flow.state === request.query.state;
      // A foreign answer must not end the way that this browser has begun.
      if (!fits) return arrive(reply, '/login', 'expired');
      clearFlowCookie(reply);
      return endAtConsole(context, request, reply, flow.sudo ? flow.return_to : '/login', async () => {
        limits.countAddress(request, reply);
        const query = request.raw.url?.split('?')[1] ?? '';
        const proof = await parts.provider.finish(query, flow);
        if (flow.sudo === null) return logIn(parts, request, reply, flow, proof);
        return grant(parts, request, reply, { ...flow, sudo: flow.sudo }, proof);
      });
    },
  });
}

async function logIn(
  { context, provider, identities }: Parts,
  request: FastifyRequest,
  reply: FastifyReply,
  flow: Flow,
  proof: ProviderProof,
): Promise<FastifyReply> {
  const opened = await loginAtProvider({ ...context, provider, identities }, proof, callerOf(request));
  setRefreshCookie(reply, opened.refresh_token);
  return go(reply, flow.return_to);
}

type SudoFlow = Flow & { readonly sudo: NonNullable<Flow['sudo']> };

async function grant(
  { context, provider }: Parts,
  request: FastifyRequest,
  reply: FastifyReply,
  { sudo, began_at, return_to }: SudoFlow,
  { person }: ProviderProof,
): Promise<FastifyReply> {
  const { db } = context;
  const identity = await findIdentity(db, { issuer: provider.issuer, subject: person.subject });
  if (identity?.user_id !== sudo.user_id) return arrive(reply, return_to, 'other_person');
  // A provider that ignores prompt and max_age answers with the login of some time ago.
  if (person.auth_time === null || person.auth_time < began_at - SKEW_S) {
    return arrive(reply, return_to, 'not_repeated');
  }
  const { token } = await transaction(db, async (tx) => {
    const granted = await grantSudoTo(tx, sudo);
    const org_id = await firstOrganisation(tx, sudo.user_id);
    const entry = { actor: sudo.user_id, action: 'auth.sudo', target: sudo.session_id };
    if (org_id !== null) {
      await appendAuditOf(context, tx, request, org_id, { ...entry, data: { by: provider.name } });
    }
    return granted;
  });
  setSudoCookie(reply, token);
  return arrive(reply, return_to, 'confirmed');
}

/** A browser waits: every failure ends at a page that says what happened. */
async function endAtConsole(
  { log }: AppContext,
  request: FastifyRequest,
  reply: FastifyReply,
  path: string,
  work: () => Promise<FastifyReply>,
): Promise<FastifyReply> {
  try {
    return await work();
  } catch (error) {
    const ending = endingOf(error);
    const problem = error instanceof Error ? error.message : String(error);
    const err = error instanceof ProviderError || error instanceof LoginRefused ? {} : { err: error };
    log.warn({ request_id: request.id, ip: request.ip, ending, problem, ...err }, 'no login at the provider');
    return arrive(reply, path, ending);
  }
}

function endingOf(error: unknown): Ending {
  if (error instanceof LoginRefused) return error.refusal;
  if (error instanceof ProviderError) return error.kind === 'invalid' ? 'failed' : error.kind;
  if (!(error instanceof AppError)) return 'failed';
  if (error.code === 'RATE_LIMITED') return 'too_many_requests';
  if (error.code === 'QUOTA_EXCEEDED') return 'too_many_sessions';
  return error.code === 'UNAUTHENTICATED' ? 'session_ended' : 'failed';
}

/** Behind `#`, where no server sees it. */
function arrive(reply: FastifyReply, path: string, ending: Ending): FastifyReply {
  return go(reply, `${path}#oidc=${ending}`);
}

function go(reply: FastifyReply, to: string): FastifyReply {
  return reply
    .status(303)
    .header('location', to)
    .send(undefined as never);
}
