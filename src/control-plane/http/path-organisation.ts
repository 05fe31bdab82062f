/**
 * Routes below `/v1/orgs/:id` act in the organisation of the path, regardless of `Berth-Org`. A session acts in any
 * organisation that its user is a member of, with the role there; a key only in its own. The route's configuration
 * (`organisation`) names the scope and roles that it needs, which are checked here before the body is read. For an
 * organisation that is not the caller's, the handler answers 404 after the body has been read.
 */
import type { FastifyRequest } from 'fastify';
import { AppError } from '../../shared/errors.ts';
import { isId, type OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { Role } from '../db/tables.ts';
import { effectiveScopes, type Scope } from '../identity/permissions.ts';
import type { Principal } from '../identity/principal.ts';
import { findRole } from '../organisations/member-store.ts';
import { principalOf } from './access.ts';

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
