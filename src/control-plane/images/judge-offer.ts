import type { OfferedImage, OfferResponse } from '../../protocol/host-types.ts';
import type { HostId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { currentImage, diskNeeds, findVersion, instancesOfVersion } from './store.ts';

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
