import { Type } from 'typebox';
import { listImages } from '../../images/store.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { COMMON, closed, EmptyBody, errors, named } from '../schemas.ts';

const Images = closed({
  data: Type.Array(
    named('Image', {
      id: Type.String(),
      current: Type.Union([Type.String(), Type.Null()], {
        description: 'The version that new disks are made over; null while no host has stored one',
      }),
      size_bytes: Type.Union([Type.Integer(), Type.Null()], {
        description: 'Of its root file system: the least that a disk may have',
      }),
      versions: Type.Array(Type.String(), {
        description: 'All that disks are based on or may be, by the hashes of their root file systems',
      }),
    }),
  ),
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
      return {
        data: images.map((image) => ({ ...image, versions: [...image.versions] })),
        next_cursor: null,
      };
    },
  });
}
