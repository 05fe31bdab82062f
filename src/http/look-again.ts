/**
 * Who calls is known from a request's head; its body may be a minute behind. After that the caller may be a member no
 * more, or the key revoked: whoever took long is looked at again once the body is there. Quick requests ask nothing.
 */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Principal } from '../auth/principal.ts';
import { requireSudo } from '../auth/sudo.ts';
import type { Db } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { principalOf, reauthorise } from './access.ts';
import { readCookie, SUDO_COOKIE } from './cookies.ts';
import { inPathOrganisation } from './path-organisation.ts';

const SLOW_MS = 2_000;

/** Registered after the access rules, whose verdict it repeats. */
export function registerLookAgain(app: FastifyInstance, db: Db, slow_ms = SLOW_MS): void {
  const enterPathOrganisation = inPathOrganisation(db);
  const lookAgain = async (request: FastifyRequest, before: Principal) => {
    const { organisation, sudo } = request.routeOptions.config;
    request.principal = await reauthorise(db, request);
    // One that is the caller's no more is found by the handler not to exist.
    if (organisation !== undefined) await enterPathOrganisation(request);
    // A session without Berth-Org is in another organisation once it has left its first.
    else if (request.principal.org_id !== before.org_id) {
      throw new AppError('FORBIDDEN', { message: 'You are not a member of the organisation any more.' });
    }
    if (sudo === true) await requireSudo(db, principalOf(request), readCookie(request, SUDO_COOKIE));
  };
  app.addHook('preValidation', (request, reply, done) => {
    const before = request.principal;
    if (before === null || reply.elapsedTime < slow_ms) return done();
    lookAgain(request, before).then(() => done(), done);
  });
}
