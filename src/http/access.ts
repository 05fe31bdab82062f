/**
 * Who may call a route. Every route says it (registration fails otherwise), and it is checked before the body
 * is read: 401, then 403, then sudo, then all the rest.
 */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { Authenticator, type CredentialHeaders, hasToken, type Remembered } from '../auth/authenticate.ts';
import type { Scope } from '../auth/permissions.ts';
import type { Principal } from '../auth/principal.ts';
import { requireSudo } from '../auth/sudo.ts';
import type { Db } from '../db/pool.ts';
import type { Role } from '../db/tables.ts';
import { assert, present } from '../lib/assert.ts';
import { AppError } from '../lib/errors.ts';
import type { AppContext } from './context.ts';
import { readCookie, SUDO_COOKIE } from './cookies.ts';
import type { RateLimits } from './rate-limits.ts';

/**
 * `public`: no credential. `session`: a person's session only. `session_or_401`: the same, where anything else is 401
 * and not 403, since what is missing is a session. `any`: any credential. Otherwise the scope that is needed.
 */
export type Access = 'public' | 'session' | 'session_or_401' | 'any' | Scope;

declare module 'fastify' {
  interface FastifyContextConfig {
    access?: Access;
    /** A person's role, one of these. A service account has none; its scope decides, where the route allows it. */
    roles?: readonly Role[];
    /** A live sudo grant of this session is needed. */
    sudo?: boolean;
    /** Any one of these scopes; which one decides what is shown. */
    any_scope?: readonly Scope[];
    /** Never with a service account. */
    people_only?: boolean;
    /**
     * Never in a session of an account whose address nobody has confirmed: what it gets would outlast a password reset by
     * the address's owner.
     */
    confirmed_address?: boolean;
    /**
     * Begins a look-up that does not depend on who asks, beside the authentication: one round trip instead of two. What
     * it finds is for the handler, which runs only if the caller is let in. Only for callers with a token of ours.
     */
    early?: (request: FastifyRequest) => void;
    /**
     * The handler does nothing but one blind `mutate`, whose transaction proves who calls: the look-up of a key that was
     * looked up within the last minute is left out, which is one round trip instead of two.
     */
    proves?: boolean;
  }
  interface FastifyRequest {
    /** Who calls. Null on public routes, and as long as it is only supposed. */
    principal: Principal | null;
    supposed: Supposed | null;
  }
}

type Check = (principal: Principal) => void;

/** Whom the caller's key stood for a moment ago. */
export interface Supposed extends Remembered {
  /** What it was let pass by, to be asked of who calls too. */
  readonly passed: Check[];
  /** Looks up who calls after all. @throws AppError where who calls is not let in any more, or does not pass */
  readonly settle: () => Promise<void>;
}

export function registerAccess(
  app: FastifyInstance,
  { db, has_smtp }: Pick<AppContext, 'db' | 'has_smtp'>,
  limits: RateLimits,
): void {
  const authenticator = new Authenticator(db);
  app.decorateRequest('principal', null);
  app.decorateRequest('supposed', null);
  app.addHook('onRoute', (route) => {
    const { access, sudo } = route.config ?? {};
    assert(access !== undefined, `${String(route.method)} ${route.url} does not say who may call it`);
    assert(sudo !== true || access !== 'public', `${route.url}: sudo without a credential`);
  });
  app.addHook('onRequest', async (request, reply) => {
    const { access } = request.routeOptions.config;
    if (access === undefined || access === 'public') return;
    if (hasToken(request.headers.authorization)) request.routeOptions.config.early?.(request);
    request.supposed = suppose(authenticator, request, access);
    if (request.supposed) return limits.countPrincipal(request.supposed.principal, reply);
    request.principal = await principalNow(authenticator, request);
    await limits.countPrincipal(request.principal, reply);
    authorise(request, request.principal, access);
    if (has_smtp && request.routeOptions.config.confirmed_address === true)
      requireConfirmed(request.principal);
  });
  // After every 403 for a role or scope, those of a route's own hooks too, and before the body is read.
  app.addHook('preParsing', (request, _reply, _payload, done) => {
    if (request.routeOptions.config.sudo !== true) return done();
    const cookie = readCookie(request, SUDO_COOKIE);
    requireSudo(db, principalOf(request), cookie).then(() => done(), done);
  });
}

/** Null: who calls has to be looked up, be it to be refused. */
function suppose(authenticator: Authenticator, request: FastifyRequest, access: Access): Supposed | null {
  if (request.routeOptions.config.proves !== true || 'idempotency-key' in request.headers) return null;
  const remembered = authenticator.remembered(credentialOf(request));
  if (!remembered || !isAuthorised(request, remembered.principal, access)) return null;
  const passed: Check[] = [];
  const settle = async () => {
    request.supposed = null;
    const principal = await principalNow(authenticator, request);
    request.principal = principal;
    authorise(request, principal, access);
    for (const check of passed) check(principal);
  };
  return { ...remembered, passed, settle };
}

/** `check` of who calls; where it refuses one who is only supposed to, of who does. @throws what `check` throws */
export async function checkCaller(request: FastifyRequest, check: Check): Promise<void> {
  const { supposed } = request;
  if (supposed) {
    try {
      check(supposed.principal);
      supposed.passed.push(check);
      return;
    } catch {
      await supposed.settle();
    }
  }
  check(principalOf(request));
}

function principalNow(authenticator: Authenticator, request: FastifyRequest): Promise<Principal> {
  return authenticator.authenticate(credentialOf(request));
}

function credentialOf(request: FastifyRequest): CredentialHeaders {
  return {
    authorization: request.headers.authorization,
    org: one(request.headers['berth-org']),
    ip: request.ip,
  };
}

/** For answers that go on: the caller as it is now. @throws AppError where it would not be let in any more */
export async function authenticateAgain(db: Db, request: FastifyRequest): Promise<Principal> {
  const principal = await principalNow(new Authenticator(db), request);
  const { access = 'public' } = request.routeOptions.config;
  authorise(request, principal, access);
  return principal;
}

function authorise(request: FastifyRequest, principal: Principal, access: Access): void {
  const { roles, people_only, any_scope } = request.routeOptions.config;
  const { credential, role } = principal;
  if (access === 'session' && credential.kind !== 'session') {
    throw new AppError('FORBIDDEN', { message: 'Only a session may do that; log in.' });
  }
  if (people_only === true && credential.kind === 'service_key') {
    throw new AppError('FORBIDDEN', { message: 'A service account may not do that.' });
  }
  if (access === 'session_or_401' && credential.kind !== 'session') {
    throw new AppError('UNAUTHENTICATED', { message: 'This needs a session; log in.' });
  }
  if (isScope(access) && !principal.scopes.has(access)) {
    throw new AppError('FORBIDDEN', { message: `This needs the scope ${access}, and a role that has it.` });
  }
  if (any_scope !== undefined && !any_scope.some((scope) => principal.scopes.has(scope))) {
    throw new AppError('FORBIDDEN', { message: `This needs the scope ${any_scope.join(' or ')}.` });
  }
  if (roles !== undefined && role !== null && !roles.includes(role)) {
    throw new AppError('FORBIDDEN', {
      message: `This needs the role ${roles.join(' or ')} in the organisation.`,
    });
  }
}

/** An address that was confirmed stays so. An API key is held by an account that had confirmed its own. */
function requireConfirmed({ credential }: Principal): void {
  if (credential.kind !== 'session' || credential.email_confirmed) return;
  throw new AppError('FORBIDDEN', {
    message:
      'The address of your account is not confirmed. Confirm it with the token that was mailed there (POST /v1/me/email/confirm); PUT /v1/me/email with the same address sends another.',
  });
}

function isAuthorised(request: FastifyRequest, principal: Principal, access: Access): boolean {
  try {
    authorise(request, principal, access);
    return true;
  } catch {
    return false;
  }
}

export function isScope(access: Access): access is Scope {
  return access.includes(':');
}

function one(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header[0] : header;
}

/** The caller; only for routes that are not public. */
export function principalOf(request: FastifyRequest): Principal {
  return present(request.principal, 'principal');
}
