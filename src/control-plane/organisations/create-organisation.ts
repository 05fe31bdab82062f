import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { newId, type UserId } from '../../shared/ids.ts';
import { allQuotas, isWithin, type QuotaLimits, requireWithin } from '../../shared/quotas.ts';
import type { Tx } from '../db/pool.ts';
import { findUser, lockUser } from '../identity/store.ts';
import { insertMembership, organisationsOf } from './member-store.ts';
import { countMadeBy, insertOrganisation, type OrganisationRow } from './store.ts';

/** Nothing can be created; what is there can be changed, and left. */
const NOTHING = allQuotas(0);

const NAME_LENGTH = 100;

/**
 * Creates an organisation owned by the user, with the user's address for bills.
 * @throws AppError QUOTA_EXCEEDED; UNAUTHENTICATED if the account no longer exists
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
 * An account always acts in an organisation: a user without one gets an empty one. Call it after the user has left: of two
 * concurrent departures the second sees the first. A quota must not keep a user in an organisation, so past the quota
 * of organisations the new one allows nothing to be created in it.
 */
export async function ensureOrganisation(tx: Tx, quotas: QuotaLimits, user_id: UserId): Promise<void> {
  await lockUser(tx, user_id);
  if ((await organisationsOf(tx, user_id)).length > 0) return;
  const user = present(await findUser(tx, user_id), 'user without an organisation');
  const name = [...(user.name === '' ? user.email : user.name)].slice(0, NAME_LENGTH).join('');
  const within = isWithin(quotas.organisations, await countMadeBy(tx, user_id));
  const row = await insertOrganisation(tx, {
    ...{ id: newId('org'), name, billing_email: user.email, created_by: user_id },
    quotas: within ? {} : NOTHING,
  });
  await insertMembership(tx, row.id, user_id, 'owner');
}
