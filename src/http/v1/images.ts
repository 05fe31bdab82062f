import { Type } from 'typebox';
import { listImages } from '../../images/store.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { COMMON, closed, EmptyBody, errors, named } from '../schemas.ts';

const Images = closed({
  data: Type.Array(named('Image', { id: Type.String(), versions: Type.Array(Type.String()) })),
  next_cursor: Type.Null(),
});

export function registerImages(app: App, { db }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/images',
    config: { access: 'instances:read' },
    schema: {
      operationId: 'listImages',
      summary: 'Images that instances can be made of',
      tags: ['Instances'],
      querystring: EmptyBody,
      response: { 200: Images, ...errors(...COMMON) },
    },
    handler: async () => {
      const images = await listImages(db);
      return { data: images.map(({ id, versions }) => ({ id, versions: [...versions] })), next_cursor: null };
    },
  });
}
