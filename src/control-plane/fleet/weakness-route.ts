/** Weaknesses of the installation, for `berth doctor`. */
import type { FastifyInstance } from 'fastify';
import { ROUTES } from '../../protocol/routes.ts';
import { sumUnheld } from '../disks/segment-store.ts';
import type { InternalContext } from '../internal/context.ts';
import { serve } from '../internal/serve.ts';
import { findWeaknesses } from './weaknesses.ts';

/** On the unix socket only, so that no other machine can read them. */
export function registerWeaknesses(app: FastifyInstance, context: InternalContext): void {
  serve(app, ROUTES.weaknesses, async () => ({
    origins: [...context.installation.origins],
    weaknesses: await findWeaknesses(context),
    awaiting_removal_bytes: await sumUnheld(context.db),
    removal_delay_seconds: context.installation.removal_delay_ms / 1_000,
  }));
}
