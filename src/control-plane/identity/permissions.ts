/** The table of what each role and scope may do. */

import { AppError } from '../../shared/errors.ts';
import { ROLES, type Role } from '../db/tables.ts';

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
