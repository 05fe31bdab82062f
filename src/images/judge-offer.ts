import type { OfferedImage, OfferResponse } from '../agent-api/types.ts';
import type { Tx } from '../db/pool.ts';
import { currentImage, findVersion, whoNeeds } from './store.ts';

/** What a host is to do with an image that it has. */
export async function judgeOffer(
  tx: Tx,
  { id, version, recipe, needed }: OfferedImage,
): Promise<OfferResponse['verdicts'][number]> {
  const known = await findVersion(tx, id, version);
  if (known) return known.removed_at === null ? 'stored' : 'removed';
  if (needed) return 'wanted';
  const current = await currentImage(tx, id);
  const of_that = current && (await findVersion(tx, id, current.version));
  if (of_that?.recipe !== recipe) return 'wanted';
  return (await whoNeeds(tx, id, version)).length > 0 ? 'wanted' : 'unneeded';
}
