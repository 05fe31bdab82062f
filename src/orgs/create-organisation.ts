import { findUser, lockUser } from '../auth/store.ts';
import type { Tx } from '../db/pool.ts';
import { present } from '../lib/assert.ts';
import { AppError } from '../lib/errors.ts';
import { newId, type UserId } from '../lib/ids.ts';
import { insertMembership, organisationsOf } from './member-store.ts';
import { insertOrganisation, type OrganisationRow } from './store.ts';

const NAME_LENGTH = 100;

/**
 * Makes an organisation that the user owns; its bills go to the user's address.
 * @throws AppError UNAUTHENTICATED where the account was deleted meanwhile
 */
export async function createOrganisation(tx: Tx, user_id: UserId, name: string): Promise<OrganisationRow> {
  await lockUser(tx, user_id);
  const user = await findUser(tx, user_id);
  if (!user) throw new AppError('UNAUTHENTICATED');
  const row = await insertOrganisation(tx, { id: newId('org'), name, billing_email: user.email });
  await insertMembership(tx, row.id, user_id, 'owner');
  return row;
}

/**
 * An account always acts in an organisation: one that has left its last gets an empty one of its own. Called after the
 * leaving: of two at once in two organisations the second to come here sees what the first has left.
 */
export async function ensureOrganisation(tx: Tx, user_id: UserId): Promise<void> {
  await lockUser(tx, user_id);
  if ((await organisationsOf(tx, user_id)).length > 0) return;
  const user = present(await findUser(tx, user_id), 'user without an organisation');
  const name = [...(user.name === '' ? user.email : user.name)].slice(0, NAME_LENGTH).join('');
  await createOrganisation(tx, user_id, name);
}
