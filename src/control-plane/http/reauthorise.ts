/**
 * Reauthorises slow requests. A caller is authenticated by the head of its request, and the body may arrive up to a minute
 * later. By then the membership may have ended or the key may be revoked, so a request that took long is checked again
 * once its body is complete.
 */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Db } from '../db/pool.ts';
import { requireSudo } from '../identity/sudo.ts';
import { principalOf, reauthorise } from './access.ts';
import { readCookie, SUDO_COOKIE } from './cookies.ts';
import { inPathOrganisation } from './path-organisation.ts';

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
