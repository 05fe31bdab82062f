/** Weaknesses of the installation, for `berth doctor`. */
import type { FastifyInstance } from 'fastify';
import { ROUTES } from '../../agent-api/routes.ts';
import { findWeaknesses } from '../monitoring/weaknesses.ts';
import type { InternalContext } from './internal-context.ts';
import { serve } from './serve.ts';

/** On the unix socket only, so that no other machine can read them. */
export function registerWeaknesses(app: FastifyInstance, context: InternalContext): void {
  serve(app, ROUTES.weaknesses, async () => ({
    origins: [...context.installation.origins],
    weaknesses: await findWeaknesses(context),
  }));
}
