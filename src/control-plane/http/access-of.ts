/** A route's access rules in one form, for the API document and `docs/permissions.md`. */
import type { FastifyContextConfig } from 'fastify';
import { ROLES, type Role } from '../db/tables.ts';
import { ROLE_SCOPES, type Scope } from '../identity/permissions.ts';
import { isScope } from './access.ts';

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
