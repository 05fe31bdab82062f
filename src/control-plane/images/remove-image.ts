/** Removes an image. Its objects stay while a disk needs them. */
import { AppError } from '../../shared/errors.ts';
import type { Tx } from '../db/pool.ts';
import { instancesOfImage, instancesOfVersion, lockVersions, markRemoved } from './store.ts';

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
  await markRemoved(tx, id, version);
}

function refused(why: string): AppError {
  return new AppError('CONFLICT', { message: `The image cannot be removed: ${why}.` });
}
