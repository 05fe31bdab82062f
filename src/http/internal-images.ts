/** The internal API's part about images: what hosts have, what the object store has. */
import type { FastifyInstance } from 'fastify';
import type {
  FindImageRequest,
  FoundImage,
  ImageRegistration,
  OfferRequest,
  OfferResponse,
  ReportResponse,
} from '../agent-api/types.ts';
import { transaction } from '../db/pool.ts';
import { judgeOffer } from '../images/judge-offer.ts';
import { registerImage } from '../images/register-image.ts';
import { findImage } from '../images/store.ts';
import type { AppContext } from './context.ts';

/** `far`: of hosts on other machines. What new disks are made over for everybody, this machine's own host says. */
export function registerImageCalls(app: FastifyInstance, { db }: Pick<AppContext, 'db'>, far: boolean): void {
  app.post<{ Body: OfferRequest }>('/internal/v1/images/offer', async (request): Promise<OfferResponse> => {
    const verdicts: OfferResponse['verdicts'][number][] = [];
    for (const image of request.body.images) verdicts.push(await judgeOffer(db, image, far));
    return { verdicts };
  });
  app.post<{ Body: ImageRegistration }>(
    '/internal/v1/images/register',
    async (request): Promise<ReportResponse> => {
      const image = far ? { ...request.body, newest: false } : request.body;
      await transaction(db, (tx) => registerImage(tx, image));
      return { outcome: 'accepted' };
    },
  );
  app.post<{ Body: FindImageRequest }>('/internal/v1/images/find', async (request, reply) => {
    const found: FoundImage | null = await findImage(db, request.body.id, request.body.version);
    return reply.type('application/json').send(JSON.stringify(found));
  });
}
