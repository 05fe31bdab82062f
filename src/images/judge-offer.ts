import type { OfferedImage, OfferResponse } from '../agent-api/types.ts';
import type { Tx } from '../db/pool.ts';
import { currentImage, findVersion, whoNeeds } from './store.ts';

/**
 * What a host is to do with an image that it has. A newer one of a far host is not stored for its being newer: once it
 * were known, the same one of this machine's own host would no longer be new, and not become the current one.
 */
export async function judgeOffer(
  tx: Tx,
  { id, version, recipe, needed }: OfferedImage,
  far: boolean,
): Promise<OfferResponse['verdicts'][number]> {
  const known = await findVersion(tx, id, version);
  if (known) return known.removed_at === null ? 'stored' : 'removed';
  if (needed) return 'wanted';
  const current = await currentImage(tx, id);
  if (!current) return 'wanted';
  const of_that = await findVersion(tx, id, current.version);
  if (!far && of_that?.recipe !== recipe) return 'wanted';
  return (await whoNeeds(tx, id, version)).length > 0 ? 'wanted' : 'unneeded';
}
