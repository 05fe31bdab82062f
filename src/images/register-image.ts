import type { ImageRegistration } from '../agent-api/types.ts';
import type { Tx } from '../db/pool.ts';
import { bringBackVersion, findVersion, insertVersion, lockVersions, makeCurrent } from './store.ts';

/**
 * Takes down that all of an image is in the object store. One that a host makes new disks over becomes the current one
 * when it is seen for the first time, and the current one is of another recipe: so two hosts with builds of the same do
 * not take turns, and one that comes back with an old one changes nothing.
 */
export async function registerImage(tx: Tx, image: ImageRegistration): Promise<void> {
  const versions = await lockVersions(tx, image.id);
  if (!(await insertVersion(tx, image))) return;
  const current = versions.find((each) => each.current);
  if (!current || (image.newest && current.recipe !== image.recipe)) {
    await makeCurrent(tx, image.id, image.version);
  }
}

/** As {@link registerImage}, by an operator who says so: it becomes the current one, also if it is there again. */
export async function registerCurrent(tx: Tx, image: ImageRegistration): Promise<void> {
  await lockVersions(tx, image.id);
  if (!(await insertVersion(tx, image)) && (await findVersion(tx, image.id, image.version))?.removed_at) {
    await bringBackVersion(tx, image);
  }
  await makeCurrent(tx, image.id, image.version);
}
