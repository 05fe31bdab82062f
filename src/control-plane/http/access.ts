/**
 * Checks who may call a route. Every route declares its `access`; without it, the registration fails. The checks come
 * before the body is read: credential (401), permission (403), sudo grant. Validation and the handler come after them.
 *
 * - A route below `/v1/orgs/:id` acts in the organisation of its path (`inPathOrganisation`).
 * - A request whose body took long is checked again (`registerReauthorisation`).
 * - `accessOf` describes a route's rules, for the API document and docs/permissions.md.
 */
import type { FastifyContextConfig, FastifyInstance, FastifyRequest } from 'fastify';
import { assert, present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { isId, type OrgId } from '../../shared/ids.ts';
import { ROLES, type Role } from '../../shared/roles.ts';
import type { AppContext } from '../context.ts';
import type { Db, Tx } from '../db/pool.ts';
import { authenticate } from '../identity/authenticate.ts';
import { effectiveScopes, ROLE_SCOPES, type Scope } from '../identity/permissions.ts';
import type { Principal } from '../identity/principal.ts';
import { requireSudo } from '../identity/sessions.ts';
import { findRole } from '../organisations/member-store.ts';
import { isOperator } from '../organisations/store.ts';
import { BodyBudget, SMALL_BODY_BYTES } from './connections.ts';
import { readCookie, SUDO_COOKIE } from './cookies.ts';
import type { RateLimits } from './rate-limits.ts';

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

function isScope(access: Access): access is Scope {
  return access.includes(':');
}

function one(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header[0] : header;
}

/** The caller, on routes that are not public. */
export function principalOf(request: FastifyRequest): Principal {
  return present(request.principal, 'principal');
}

// A route's access rules in one form, for the API document and `docs/permissions.md`.

export interface RouteAccess {
  /** `public`: no credential; `session`: a person's only; `any`: a session or an API key. */
  readonly kind: 'public' | 'session' | 'any';
  readonly scope: Scope | null;
  /** One of these instead, if there are several. */
  readonly any_scope?: readonly Scope[];
  /** In the organisation; null: any role with the scope. */
  readonly roles: readonly Role[] | null;
  readonly sudo: boolean;
  /** Only in the organisation that operates the installation. */
  readonly operator?: boolean;
  /** Requires a confirmed address. */
  readonly confirmed_address?: boolean;
  /** Accepts API keys of service accounts. */
  readonly service_accounts: boolean;
}

export function accessOf(config: FastifyContextConfig): RouteAccess {
  const {
    access = 'public',
    organisation,
    sudo = false,
    people_only = false,
    confirmed_address = false,
    operator = false,
  } = config;
  const kind = access === 'public' ? 'public' : access.startsWith('session') ? 'session' : 'any';
  const own_scope = isScope(access) ? access : null;
  const roles = config.roles ?? organisation?.roles ?? null;
  // A role required by the path's organisation needs a person; `roles` beside a scope also accepts a service account.
  const needs_person = people_only || (organisation?.roles ?? null) !== null;
  return {
    kind,
    ...(config.any_scope === undefined ? {} : { any_scope: config.any_scope }),
    scope: organisation?.scope ?? own_scope,
    roles,
    sudo,
    ...(operator ? { operator } : {}),
    ...(confirmed_address ? { confirmed_address } : {}),
    service_accounts: kind === 'any' && !needs_person,
  };
}

export function describeAccess(access: RouteAccess): string {
  const { kind, scope, any_scope, roles, sudo, operator, confirmed_address, service_accounts } = access;
  if (kind === 'public') return '**Access**: no credential.';
  const parts = [
    kind === 'session' ? 'a session only' : 'a session or an API key',
    ...(scope === null ? [] : [`scope \`${scope}\``]),
    ...(any_scope === undefined ? [] : [`scope ${any_scope.map((each) => `\`${each}\``).join(' or ')}`]),
    ...(roles === null ? [] : [`role ${roles.join(' or ')}`]),
    ...(operator === true ? ['in the organisation that operates the installation'] : []),
    ...(sudo ? ['a live sudo grant'] : []),
    ...(confirmed_address === true ? ['a confirmed address'] : []),
    ...(kind === 'any' && !service_accounts ? ['not for service accounts'] : []),
  ];
  return `**Access**: ${parts.join('; ')}.`;
}

export function scopesOf({ scope, any_scope }: RouteAccess): readonly Scope[] {
  return any_scope ?? (scope === null ? [] : [scope]);
}

/** The roles that have the scope and that the route accepts. */
export function rolesOf(access: RouteAccess): readonly Role[] {
  const scopes = scopesOf(access);
  return ROLES.filter(
    (role) =>
      (access.roles === null || access.roles.includes(role)) &&
      (scopes.length === 0 || scopes.some((scope) => ROLE_SCOPES[role].includes(scope))),
  );
}

// Routes below `/v1/orgs/:id` act in the organisation of the path, regardless of `Berth-Org`. A session acts in any
// organisation that its user is a member of, with the role there; a key only in its own. The route's configuration
// (`organisation`) names the scope and roles that it needs, which are checked here before the body is read. For an
// organisation that is not the caller's, the handler answers 404 after the body has been read.

export interface OrganisationAccess {
  /** The caller needs it; a session has the scopes of its user's role there. */
  readonly scope?: Scope;
  /** The caller needs one of these roles there. A service account has none. */
  readonly roles?: readonly Role[];
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route acts in the organisation of its path. */
    organisation?: OrganisationAccess;
  }
}

/** An `onRequest` hook of such a route; it runs after authentication. @throws AppError FORBIDDEN */
export function inPathOrganisation(tx: Tx) {
  return async (request: FastifyRequest): Promise<void> => {
    const { id } = request.params as { id: string };
    const { scope, roles } = request.routeOptions.config.organisation ?? {};
    const principal = principalOf(request);
    const acting = await actIn(tx, principal, id);
    // A session has no role, and so no scope, in an organisation that its user is not a member of.
    const unknown_here = acting === null && principal.credential.kind === 'session';
    if (scope !== undefined && !unknown_here && !(acting ?? principal).scopes.has(scope)) {
      throw new AppError('FORBIDDEN', { message: `This needs the scope ${scope}, and a role that has it.` });
    }
    if (acting === null) return;
    if (roles !== undefined && (acting.role === null || !roles.includes(acting.role))) {
      throw new AppError('FORBIDDEN', {
        message: `This needs the role ${roles.join(' or ')} in the organisation.`,
      });
    }
    request.principal = acting;
  };
}

async function actIn(tx: Tx, principal: Principal, id: string): Promise<Principal | null> {
  if (principal.org_id === id) return principal;
  const { credential } = principal;
  if (credential.kind !== 'session' || !isId('org', id)) return null;
  const role = await findRole(tx, id, credential.user_id);
  return role === undefined ? null : { ...principal, org_id: id, role, scopes: effectiveScopes(role, null) };
}

/** The organisation of the path, in which the caller acts. @throws AppError NOT_FOUND where it is not the caller's */
export function pathOrganisation(request: FastifyRequest): OrgId {
  const { id } = request.params as { id: string };
  const { org_id } = principalOf(request);
  if (org_id !== id) throw new AppError('NOT_FOUND');
  return org_id;
}

/** A field of a body that is not validated yet, for refusals that precede validation. */
export function peek(body: unknown, field: string): unknown {
  return typeof body === 'object' && body !== null ? (body as Record<string, unknown>)[field] : undefined;
}

// Reauthorises slow requests. A caller is authenticated by the head of its request, and the body may arrive up to a minute
// later. By then the membership may have ended or the key may be revoked, so a request that took long is checked again
// once its body is complete.

const SLOW_MS = 2_000;

/** Registered after the access rules, which it repeats. */
export function registerReauthorisation(app: FastifyInstance, db: Db, slow_ms = SLOW_MS): void {
  const enterPathOrganisation = inPathOrganisation(db);
  const repeatChecks = async (request: FastifyRequest) => {
    const { organisation, sudo } = request.routeOptions.config;
    request.principal = await reauthorise(db, request);
    // If the caller has left the organisation of the path, the handler answers 404.
    if (organisation !== undefined) await enterPathOrganisation(request);
    if (sudo === true) await requireSudo(db, principalOf(request), readCookie(request, SUDO_COOKIE));
  };
  app.addHook('preValidation', (request, reply, done) => {
    if (request.principal === null || reply.elapsedTime < slow_ms) return done();
    repeatChecks(request).then(() => done(), done);
  });
}
