/**
 * Who may call a route. Every route says it (registration fails otherwise), and it is checked before the body
 * is read: 401, then 403, then all the rest.
 */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { authenticate } from '../auth/authenticate.ts';
import type { Scope } from '../auth/permissions.ts';
import type { Principal } from '../auth/principal.ts';
import type { Db } from '../db/pool.ts';
import { assert, present } from '../lib/assert.ts';
import { AppError } from '../lib/errors.ts';

/** `public`: no credential. `session`: a person's session only. Otherwise the scope that is needed. */
export type Access = 'public' | 'session' | 'any' | Scope;

declare module 'fastify' {
  interface FastifyContextConfig {
    access?: Access;
  }
  interface FastifyRequest {
    principal: Principal | null;
  }
}

export function registerAccess(app: FastifyInstance, db: Db): void {
  app.decorateRequest('principal', null);
  app.addHook('onRoute', (route) => {
    assert(
      route.config?.access !== undefined,
      `${String(route.method)} ${route.url} does not say who may call it`,
    );
  });
  app.addHook('onRequest', async (request) => {
    const access = request.routeOptions.config.access;
    if (access === undefined || access === 'public') return;
    const principal = await authenticate(
      db,
      request.headers.authorization,
      one(request.headers['berth-org']),
    );
    request.principal = principal;
    if (access === 'any') return;
    if (access === 'session') {
      if (principal.credential.kind !== 'session')
        throw new AppError('FORBIDDEN', { message: 'Only a session may do that; log in.' });
    } else if (!principal.scopes.has(access)) {
      throw new AppError('FORBIDDEN', { message: `This needs the scope ${access}, and a role that has it.` });
    }
  });
}

function one(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header[0] : header;
}

/** The caller; only for routes that are not public. */
export function principalOf(request: FastifyRequest): Principal {
  return present(request.principal, 'principal');
}
