import { Type } from 'typebox';
import { listImages } from '../../images/store.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { type CursorSealer, pageOfList } from '../pagination.ts';
import { COMMON, errors, named, pageOf, pageQuery } from '../schemas.ts';

const Image = named('Image', {
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
});

export function registerImages(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/images',
    config: { access: 'instances:read' },
    schema: {
      operationId: 'listImages',
      summary: 'Images that instances can be made of, by name',
      tags: ['Instances'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Image), ...errors(...COMMON) },
    },
    handler: (request) =>
      pageOfList(cursors, principalOf(request), request, {
        route: 'images',
        list: async (before, count) => (await listImages(db, before)).slice(0, count),
        show: (image) => ({ ...image, versions: [...image.versions] }),
      }),
  });
}
