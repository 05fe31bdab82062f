/**
 * Decides which images of hosts are uploaded to the object store, and which version of an image is current, the one for
 * new disks. Also marks images as removed. An image that a disk is based on cannot be removed.
 */
import type { FastifyInstance } from 'fastify';
import type { ImageRegistration, OfferedImage, OfferResponse } from '../../protocol/host-types.ts';
import { ROUTES } from '../../protocol/routes.ts';
import { AppError } from '../../shared/errors.ts';
import type { HostId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import { type Tx, transaction } from '../db/pool.ts';
import { accepted, serve } from '../internal/serve.ts';
import {
  currentImage,
  diskNeeds,
  findImage,
  findVersion,
  insertVersion,
  instancesOfImage,
  instancesOfVersion,
  lockVersions,
  makeCurrent,
  markImageRemoved,
  restoreVersion,
} from './store.ts';

/** More versions than any image needs: a remote host's further ones are refused. */
const VERSIONS_MAX = 200;

/**
 * Records that all objects of an image are in the object store. A host's newest image becomes current if it is new here and
 * the current one is of another recipe: so two hosts with builds of one recipe do not alternate, and a host that comes back
 * with an old image changes nothing. A remote host (`from`) may only register an image of one of its disks, and
 * never the current image. False when refused.
 */
export async function registerImage(
  tx: Tx,
  image: ImageRegistration,
  from: { readonly id: HostId; readonly remote: boolean } | null = null,
): Promise<boolean> {
  const versions = await lockVersions(tx, image.id);
  if (from?.remote) {
    if (await findVersion(tx, image.id, image.version)) return true;
    const taken = await diskNeeds(tx, from.id, image.id, image.version);
    return taken && versions.length < VERSIONS_MAX && insertVersion(tx, image);
  }
  if (!(await insertVersion(tx, image))) return true;
  const current = versions.find((each) => each.current);
  if (!current || (image.newest && current.recipe !== image.recipe)) {
    await makeCurrent(tx, image.id, image.version);
  }
  return true;
}

/** As {@link registerImage} on an operator's order: it becomes current, even if it was removed before. */
export async function registerCurrent(tx: Tx, image: ImageRegistration): Promise<void> {
  await lockVersions(tx, image.id);
  if (!(await insertVersion(tx, image)) && (await findVersion(tx, image.id, image.version))?.removed_at) {
    await restoreVersion(tx, image);
  }
  await makeCurrent(tx, image.id, image.version);
}

/** Whether a host should upload an image that it has. A remote host uploads only images that one of its disks is based on. */
async function judgeOffer(
  tx: Tx,
  { id, version, recipe, needed }: OfferedImage,
  host: { readonly id: HostId; readonly remote: boolean },
): Promise<OfferResponse['verdicts'][number]> {
  const known = await findVersion(tx, id, version);
  if (known) return known.removed_at === null ? 'stored' : 'removed';
  if (host.remote) return (await diskNeeds(tx, host.id, id, version)) ? 'wanted' : 'unneeded';
  if (needed) return 'wanted';
  const current = await currentImage(tx, id);
  if (!current) return 'wanted';
  const current_version = await findVersion(tx, id, current.version);
  if (current_version?.recipe !== recipe) return 'wanted';
  return (await instancesOfVersion(tx, id, version)).length > 0 ? 'wanted' : 'unneeded';
}

/**
 * Marks versions of an image as removed: the one whose hash begins with `prefix`, or all. The caller deletes the objects
 * afterwards, and hosts delete their copies. Returns the versions.
 * @throws AppError NOT_FOUND, INVALID_REQUEST, CONFLICT naming the instances that need it
 */
export async function removeImage(tx: Tx, id: string, prefix: string | null): Promise<string[]> {
  const versions = await lockVersions(tx, id);
  if (versions.length === 0) throw new AppError('NOT_FOUND', { message: `No image "${id}" is stored.` });
  if (prefix === null) {
    const instances = await instancesOfImage(tx, id);
    if (instances.length > 0) throw refused(`instances use it: ${instances.join(', ')}`);
    if (id === 'debian-12') throw refused('it is the default image of new instances');
    for (const { version } of versions) await removeUnneeded(tx, id, version);
    return versions.map(({ version }) => version);
  }
  const [found, second] = versions.filter(({ version }) => version.startsWith(prefix));
  if (!found) throw new AppError('NOT_FOUND', { message: `Image "${id}" has no version ${prefix}.` });
  if (second)
    throw new AppError('CONFLICT', { message: `Several versions of "${id}" begin with ${prefix}.` });
  if (found.current) throw refused('it is the current version for new disks; add or build a newer one first');
  await removeUnneeded(tx, id, found.version);
  return [found.version];
}

async function removeUnneeded(tx: Tx, id: string, version: string): Promise<void> {
  const instances = await instancesOfVersion(tx, id, version);
  if (instances.length > 0) throw refused(`disks are based on it: ${instances.join(', ')}`);
  await markImageRemoved(tx, id, version);
}

function refused(why: string): AppError {
  return new AppError('CONFLICT', { message: `The image cannot be removed: ${why}.` });
}

/**
 * Serves the internal API about the images that hosts have, and those in the object store. Only this machine's host offers
 * images for new disks; other hosts register those that their disks are based on.
 */
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
