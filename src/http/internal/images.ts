/** Internal API: the images that hosts have, and those in the object store. */
import type { FastifyInstance } from 'fastify';
import type { OfferResponse } from '../../agent-api/host-types.ts';
import { ROUTES } from '../../agent-api/routes.ts';
import { transaction } from '../../db/pool.ts';
import { judgeOffer } from '../../images/judge-offer.ts';
import { registerImage } from '../../images/register-image.ts';
import { findImage } from '../../images/store.ts';
import type { AppContext } from '../context.ts';
import { accepted, serve } from './serve.ts';

/** Only this machine's host offers images for new disks; other hosts register those that their disks are based on. */
export function registerImageCalls(app: FastifyInstance, { db }: Pick<AppContext, 'db'>): void {
  serve(app, ROUTES.offerImages, async ({ body, host }) => {
    const verdicts: OfferResponse['verdicts'][number][] = [];
    for (const image of body.images) verdicts.push(await judgeOffer(db, image, host));
    return { verdicts };
  });
  serve(app, ROUTES.registerImage, async ({ body, host }) =>
    accepted(await transaction(db, (tx) => registerImage(tx, body, host))),
  );
  serve(app, ROUTES.findImage, ({ body }) => findImage(db, body.id, body.version));
}
