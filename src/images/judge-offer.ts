import type { OfferedImage, OfferResponse } from '../agent-api/host-types.ts';
import type { Tx } from '../db/pool.ts';
import type { HostId } from '../lib/ids.ts';
import { currentImage, diskNeeds, findVersion, instancesOfVersion } from './store.ts';

/** What a host is to do with an image that it has. Of a remote one only what a disk there is based on is taken. */
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
  const of_that = await findVersion(tx, id, current.version);
  if (of_that?.recipe !== recipe) return 'wanted';
  return (await instancesOfVersion(tx, id, version)).length > 0 ? 'wanted' : 'unneeded';
}
