/**
 * Defines the scopes, and which of them each role has. Parses and compares scopes. An API key of a person may do what
 * both its own scope and the person's role allow.
 */
import { AppError } from '../../shared/errors.ts';
import { ROLES, type Role } from '../../shared/roles.ts';
import type { Principal } from './principal.ts';

export const RESOURCES = [
  'instances',
  'vm',
  'ssh_keys',
  'webhooks',
  'notifications',
  'api_keys',
  'org',
  'audit',
] as const;
export type Resource = (typeof RESOURCES)[number];
export type Scope = `${Resource}:${'read' | 'write'}`;

export const ALL_SCOPES: readonly Scope[] = RESOURCES.flatMap(
  (resource) => [`${resource}:read`, `${resource}:write`] as const,
);

const READS: readonly Scope[] = ['instances:read', 'vm:read', 'ssh_keys:read', 'webhooks:read', 'org:read'];
const OWN: readonly Scope[] = [
  'ssh_keys:write',
  'notifications:read',
  'notifications:write',
  'api_keys:read',
  'api_keys:write',
];

export const ROLE_SCOPES: Record<Role, readonly Scope[]> = {
  owner: ALL_SCOPES,
  admin: ALL_SCOPES,
  member: [...READS, ...OWN, 'instances:write', 'vm:write'],
  billing: [...READS, ...OWN, 'org:write'],
};

export function rolesWith(scope: Scope): readonly Role[] {
  return ROLES.filter((role) => ROLE_SCOPES[role].includes(scope));
}

/**
 * Reads a scope string (OAuth syntax: `resource:action` separated by single spaces, or `*`). Returns it in
 * a fixed order without duplicates. @throws AppError INVALID_REQUEST
 */
export function parseScope(text: string): readonly Scope[] {
  if (text === '*') return ALL_SCOPES;
  const known: ReadonlySet<string> = new Set(ALL_SCOPES);
  const words = text.split(' ');
  const bad = words.find((word) => !known.has(word));
  if (bad !== undefined || words.length > ALL_SCOPES.length) {
    const issue =
      bad === undefined
        ? 'too many scopes'
        : `"${bad.slice(0, 60)}" is no scope; it is resource:read, resource:write or *`;
    throw new AppError('INVALID_REQUEST', {
      message: `scope: ${issue}`,
      details: [{ field: 'scope', issue }],
    });
  }
  return ALL_SCOPES.filter((scope) => words.includes(scope));
}

/** The intersection of a credential's scope and its holder's role. */
export function effectiveScopes(role: Role, scope: string | null): ReadonlySet<Scope> {
  const allowed = ROLE_SCOPES[role];
  if (scope === null) return new Set(allowed);
  const given = new Set(parseScope(scope));
  return new Set(allowed.filter((each) => given.has(each)));
}

/** The stored form of a scope: `*`, or its parts in a fixed order without duplicates. @throws AppError INVALID_REQUEST */
export function canonicalScope(text: string): string {
  return text === '*' ? '*' : parseScope(text).join(' ');
}

/** Whether everything in `text` is in `held`; `*` stands for every scope there is. @throws AppError INVALID_REQUEST */
export function scopeWithin(held: ReadonlySet<Scope>, text: string): boolean {
  return parseScope(text).every((scope) => held.has(scope));
}

/** @throws AppError FORBIDDEN if the scope exceeds the caller's, INVALID_REQUEST if it is not a scope */
export function requireWithinOwn(principal: Principal, text: string): void {
  if (scopeWithin(principal.scopes, text)) return;
  const beyond = parseScope(text).filter((scope) => !principal.scopes.has(scope));
  const named = text === '*' && beyond.length === ALL_SCOPES.length ? '*' : beyond.join(' ');
  throw new AppError('FORBIDDEN', { message: `The requested scope exceeds your own: ${named}` });
}

/**
 * The same before the body is validated, so that 403 comes before 400: a scope beyond the caller's is rejected whatever
 * else is wrong. An unreadable scope is left to the validation.
 */
export function refuseEscalation(principal: Principal, body: unknown): void {
  const scope = typeof body === 'object' && body !== null && 'scope' in body ? body.scope : undefined;
  if (typeof scope !== 'string') return;
  try {
    requireWithinOwn(principal, scope);
  } catch (error) {
    if (error instanceof AppError && error.code === 'INVALID_REQUEST') return;
    throw error;
  }
}
