/**
 * Routes below `/v1/orgs/:id` act in the organisation that the path names, whatever `Berth-Org` says: a session in any
 * that it is a member of, with the role that it has there; a key in its own only. What a route asks for stands in its
 * configuration under `organisation` and is checked here, before the body is read; an organisation that is not the
 * caller's is found by the handler not to exist, after the body has been.
 */
import type { FastifyRequest } from 'fastify';
import { effectiveScopes, type Scope } from '../auth/permissions.ts';
import type { Principal } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import type { Role } from '../db/tables.ts';
import { AppError } from '../lib/errors.ts';
import { isId, type OrgId } from '../lib/ids.ts';
import { findRole } from '../orgs/member-store.ts';
import { principalOf } from './access.ts';

export interface OrganisationAccess {
  /** Also needed of a session, whose role there has it or not. */
  readonly scope?: Scope;
  /** One of these, in the organisation. A service account has none. */
  readonly roles?: readonly Role[];
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route acts in the organisation of its path. */
    organisation?: OrganisationAccess;
  }
}

/** A route's own `onRequest` hook; it runs after the caller is known. @throws AppError FORBIDDEN */
export function inPathOrganisation(tx: Tx) {
  return async (request: FastifyRequest): Promise<void> => {
    const { id } = request.params as { id: string };
    const { scope, roles } = request.routeOptions.config.organisation ?? {};
    const principal = principalOf(request);
    const acting = await actIn(tx, principal, id);
    // A session has no scope but its role's, and has no role in an organisation that is not its own.
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

/** The organisation of the path, in which the caller acts. @throws AppError NOT_FOUND when it is not the caller's */
export function pathOrganisation(request: FastifyRequest): OrgId {
  const { id } = request.params as { id: string };
  const { org_id } = principalOf(request);
  if (org_id !== id) throw new AppError('NOT_FOUND');
  return org_id;
}

/** A member of an unvalidated body, for what must be refused before the body is looked at. */
export function peek(body: unknown, field: string): unknown {
  return typeof body === 'object' && body !== null ? (body as Record<string, unknown>)[field] : undefined;
}
