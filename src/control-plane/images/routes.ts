/** Serves `GET /v1/images`: the images that instances can be created with. */
import { Type } from 'typebox';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import type { App } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import { named, pageOf, pageQuery } from '../http/schemas.ts';
import { listImages } from './store.ts';

const EXAMPLE_VERSION = '5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef';
const Image = named('Image', {
  id: Type.String({ maxLength: 64, examples: ['debian-12'] }),
  current: Type.Union([Type.String(), Type.Null()], {
    description: 'The version that new disks are based on; null: no host has stored one yet',
    examples: [EXAMPLE_VERSION],
  }),
  size_bytes: Type.Union([Type.Integer(), Type.Null()], {
    description: 'The size of its root file system, which is the minimum size of a disk',
    examples: [1_073_741_824],
  }),
  versions: Type.Array(Type.String(), {
    description: 'All versions that disks are or can be based on: hashes of root file systems',
    examples: [[EXAMPLE_VERSION]],
  }),
});

export function registerImages(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/images',
    config: { access: 'instances:read' },
    schema: {
      operationId: 'listImages',
      summary: 'List the images for instances, by name',
      tags: ['Instances'],
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Image) },
    },
    handler: (request) =>
      pageOfList(cursors, principalOf(request), request, {
        route: 'images',
        list: async (before, count) => (await listImages(db, before)).slice(0, count),
        show: (image) => ({ ...image, versions: [...image.versions] }),
      }),
  });
}
