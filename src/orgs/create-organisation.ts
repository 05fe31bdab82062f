import { findUser, lockUser } from '../auth/store.ts';
import type { Tx } from '../db/pool.ts';
import { present } from '../lib/assert.ts';
import { AppError } from '../lib/errors.ts';
import { newId, type UserId } from '../lib/ids.ts';
import { allQuotas, isWithin, type QuotaLimits, requireWithin } from '../lib/quotas.ts';
import { insertMembership, organisationsOf } from './member-store.ts';
import { countMadeBy, insertOrganisation, type OrganisationRow } from './store.ts';

const NAME_LENGTH = 100;

/**
 * Makes an organisation that the user owns; its bills go to the user's address.
 * @throws AppError QUOTA_EXCEEDED; UNAUTHENTICATED where the account was deleted meanwhile
 */
export async function createOrganisation(
  tx: Tx,
  quotas: QuotaLimits,
  user_id: UserId,
  name: string,
): Promise<OrganisationRow> {
  await lockUser(tx, user_id);
  const user = await findUser(tx, user_id);
  if (!user) throw new AppError('UNAUTHENTICATED');
  requireWithin('organisations', quotas.organisations, await countMadeBy(tx, user_id));
  const of_default = { id: newId('org'), name, billing_email: user.email, created_by: user_id, quotas: {} };
  const row = await insertOrganisation(tx, of_default);
  await insertMembership(tx, row.id, user_id, 'owner');
  return row;
}

/**
 * An account always acts in an organisation: one that has left its last gets an empty one of its own. Called after the
 * leaving: of two at once in two organisations the second to come here sees what the first has left. Nobody is kept in an
 * organisation by the quota of another, so past the quota of organisations it is one in which nothing can be made.
 */
export async function ensureOrganisation(tx: Tx, quotas: QuotaLimits, user_id: UserId): Promise<void> {
  await lockUser(tx, user_id);
  if ((await organisationsOf(tx, user_id)).length > 0) return;
  const user = present(await findUser(tx, user_id), 'user without an organisation');
  const name = [...(user.name === '' ? user.email : user.name)].slice(0, NAME_LENGTH).join('');
  const within = isWithin(quotas.organisations, await countMadeBy(tx, user_id));
  const row = await insertOrganisation(tx, {
    ...{ id: newId('org'), name, billing_email: user.email, created_by: user_id },
    quotas: within ? {} : allQuotas(0),
  });
  await insertMembership(tx, row.id, user_id, 'owner');
}
