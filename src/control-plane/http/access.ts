/**
 * Access control. Every route declares its `access` (registration fails otherwise), which is checked before the body is
 * read: 401, then 403, then sudo, then everything else.
 */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { assert, present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import type { Db } from '../db/pool.ts';
import type { Role } from '../db/tables.ts';
import { authenticate } from '../identity/authenticate.ts';
import type { Scope } from '../identity/permissions.ts';
import type { Principal } from '../identity/principal.ts';
import { requireSudo } from '../identity/sudo.ts';
import { isOperator } from '../organisations/store.ts';
import { readCookie, SUDO_COOKIE } from './cookies.ts';
import type { RateLimits } from './rate-limits.ts';
import { BodyBudget, SMALL_BODY_BYTES } from './server/body-budget.ts';

/**
 * `public`: no credential. `session`: only a person's session. `session_or_401`: the same, but any other credential gets
 * 401 instead of 403, because a session is missing. `any`: any credential. Otherwise the required scope.
 */
export type Access = 'public' | 'session' | 'session_or_401' | 'any' | Scope;

declare module 'fastify' {
  interface FastifyContextConfig {
    access?: Access;
    /** A person needs one of these roles. For a service account, which has none, the scope decides. */
    roles?: readonly Role[];
    /** Requires a live sudo grant of the session. */
    sudo?: boolean;
    /** Requires one of these scopes; which one decides what the response shows. */
    any_scope?: readonly Scope[];
    /** Rejects service accounts. */
    people_only?: boolean;
    /** Only in the organisation that operates the installation. */
    operator?: boolean;
    /**
     * Rejects sessions of an account with an unconfirmed address: the result would outlast a password reset by the
     * address's owner.
     */
    confirmed_address?: boolean;
  }
  interface FastifyRequest {
    /** Null on public routes. */
    principal: Principal | null;
  }
}

export function registerAccess(
  app: FastifyInstance,
  { db, has_smtp }: Pick<AppContext, 'db' | 'has_smtp'>,
  limits: RateLimits,
): void {
  const bodies = new BodyBudget();
  app.decorateRequest('principal', null);
  app.addHook('onRoute', (route) => {
    const { access, sudo } = route.config ?? {};
    assert(access !== undefined, `${String(route.method)} ${route.url} does not say who may call it`);
    assert(sudo !== true || access !== 'public', `${route.url}: sudo without a credential`);
    if (access === 'public') route.bodyLimit ??= SMALL_BODY_BYTES;
  });
  app.addHook('onRequest', async (request, reply) => {
    const { access } = request.routeOptions.config;
    if (access === undefined || access === 'public') return;
    request.principal = await authenticateRequest(db, request);
    limits.countPrincipal(request.principal, reply);
    authorise(request, request.principal, access);
    bodies.take(request.principal.org_id, request, reply);
    if (request.routeOptions.config.operator === true) await requireOperator(db, request.principal);
    if (has_smtp && request.routeOptions.config.confirmed_address === true)
      requireConfirmed(request.principal);
  });
  // After every 403, also of a route's own hooks, and before the body is read.
  app.addHook('preParsing', (request, _reply, _payload, done) => {
    if (request.routeOptions.config.sudo !== true) return done();
    const cookie = readCookie(request, SUDO_COOKIE);
    requireSudo(db, principalOf(request), cookie).then(() => done(), done);
  });
}

function authenticateRequest(db: Db, request: FastifyRequest): Promise<Principal> {
  return authenticate(db, {
    authorization: request.headers.authorization,
    org: one(request.headers['berth-org']),
    ip: request.ip,
  });
}

/** Looks up the caller again, for long requests and streams. @throws AppError if the route would now reject it */
export async function reauthorise(db: Db, request: FastifyRequest): Promise<Principal> {
  const principal = await authenticateRequest(db, request);
  const { access = 'public', organisation } = request.routeOptions.config;
  authorise(request, principal, access);
  // A session without Berth-Org moves to another organisation when its user leaves the first. Where the path names one, it counts.
  if (organisation === undefined && principal.org_id !== request.principal?.org_id)
    throw new AppError('FORBIDDEN', { message: 'You are no longer a member of the organisation.' });
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

async function requireOperator(db: Db, { org_id }: Principal): Promise<void> {
  if (await isOperator(db, org_id)) return;
  throw new AppError('FORBIDDEN', {
    message:
      'Only owners and admins of the organisation that operates this installation may see it. It is the first administrator’s.',
  });
}

/** A confirmed address stays confirmed, and only a confirmed account makes API keys. */
function requireConfirmed({ credential }: Principal): void {
  if (credential.kind !== 'session' || credential.email_confirmed) return;
  throw new AppError('FORBIDDEN', {
    message:
      'The address of your account is not confirmed. Confirm it with the token that was mailed there (POST /v1/me/email/confirm); PUT /v1/me/email with the same address sends another.',
  });
}

export function isScope(access: Access): access is Scope {
  return access.includes(':');
}

function one(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header[0] : header;
}

/** The caller, on routes that are not public. */
export function principalOf(request: FastifyRequest): Principal {
  return present(request.principal, 'principal');
}
