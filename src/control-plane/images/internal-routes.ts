/** Internal API: the images that hosts have, and those in the object store. */
import type { FastifyInstance } from 'fastify';
import type { OfferResponse } from '../../protocol/host-types.ts';
import { ROUTES } from '../../protocol/routes.ts';
import type { AppContext } from '../context.ts';
import { transaction } from '../db/pool.ts';
import { accepted, serve } from '../internal/serve.ts';
import { judgeOffer, registerImage } from './register-image.ts';
import { findImage } from './store.ts';

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
