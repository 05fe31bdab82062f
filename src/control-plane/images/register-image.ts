/** What a host stores of its images: which are needed, and which become current. */
import type { ImageRegistration, OfferedImage, OfferResponse } from '../../protocol/host-types.ts';
import type { HostId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import {
  currentImage,
  diskNeeds,
  findVersion,
  insertVersion,
  instancesOfVersion,
  lockVersions,
  makeCurrent,
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
export async function judgeOffer(
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
