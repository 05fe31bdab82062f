import type { Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { instancesOfImage, instancesOfVersion, lockVersions, markRemoved } from './store.ts';

/**
 * Takes versions of an image out of use: the one whose hash begins with `prefix`, or without it all of them. Objects are
 * removed after this, and hosts remove what they have. Answers the versions.
 * @throws AppError NOT_FOUND, INVALID_REQUEST, CONFLICT naming who needs it
 */
export async function removeImage(tx: Tx, id: string, prefix: string | null): Promise<string[]> {
  const versions = await lockVersions(tx, id);
  if (versions.length === 0) throw new AppError('NOT_FOUND', { message: `No image "${id}" is stored.` });
  if (prefix === null) {
    const instances = await instancesOfImage(tx, id);
    if (instances.length > 0) throw refused(`instances are made of it: ${instances.join(', ')}`);
    if (id === 'debian-12') throw refused('it is what instances are made of unless they say otherwise');
    for (const { version } of versions) await markNeededByNobody(tx, id, version);
    return versions.map(({ version }) => version);
  }
  const [found, second] = versions.filter(({ version }) => version.startsWith(prefix));
  if (!found) throw new AppError('NOT_FOUND', { message: `Image "${id}" has no version ${prefix}.` });
  if (second)
    throw new AppError('CONFLICT', { message: `Several versions of "${id}" begin with ${prefix}.` });
  if (found.current) throw refused('it is what new disks are made over; add or build a newer one first');
  await markNeededByNobody(tx, id, found.version);
  return [found.version];
}

async function markNeededByNobody(tx: Tx, id: string, version: string): Promise<void> {
  const instances = await instancesOfVersion(tx, id, version);
  if (instances.length > 0) throw refused(`disks are based on it: ${instances.join(', ')}`);
  await markRemoved(tx, id, version);
}

function refused(why: string): AppError {
  return new AppError('CONFLICT', { message: `The image is not removed: ${why}.` });
}
