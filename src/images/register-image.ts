import type { ImageRegistration } from '../agent-api/host-types.ts';
import type { Tx } from '../db/pool.ts';
import type { HostId } from '../lib/ids.ts';
import {
  bringBackVersion,
  diskNeeds,
  findVersion,
  insertVersion,
  lockVersions,
  makeCurrent,
} from './store.ts';

/** An image of which nobody has so many versions; a remote host's are refused from here on. */
const VERSIONS_MAX = 200;

/**
 * Takes down that all of an image is in the object store. One that a host makes new disks over becomes the current one
 * when it is seen for the first time, and the current one is of another recipe: so two hosts with builds of the same do
 * not take turns, and one that comes back with an old one changes nothing. `from`: a remote host registers what a disk there is
 * based on, and nothing that others' disks are made over. False when it is refused.
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

/** As {@link registerImage}, by an operator who says so: it becomes the current one, also if it is there again. */
export async function registerCurrent(tx: Tx, image: ImageRegistration): Promise<void> {
  await lockVersions(tx, image.id);
  if (!(await insertVersion(tx, image)) && (await findVersion(tx, image.id, image.version))?.removed_at) {
    await bringBackVersion(tx, image);
  }
  await makeCurrent(tx, image.id, image.version);
}
