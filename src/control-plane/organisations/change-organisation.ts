/**
 * Creates and renames organisations, and changes their billing addresses. `ensureOrganisation` creates an empty
 * organisation for a user who is in none, because an account always acts in an organisation.
 */
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { newId, type OrgId, type UserId } from '../../shared/ids.ts';
import { allQuotas, isWithin, type QuotaLimits, requireWithin } from '../../shared/quotas.ts';
import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { findUser, lockUser } from '../identity/store.ts';
import { type Mailbox, TOLD_FOR_S } from '../mail/store.ts';
import { insertMembership, organisationsOf } from './member-store.ts';
import {
  countMadeBy,
  insertOrganisation,
  lockOrganisation,
  type OrganisationRow,
  updateOrganisation,
} from './store.ts';

/** Throws if the organisation has changed since the caller read it. */
type Check = (before: OrganisationRow) => void;

/** @throws AppError NOT_FOUND */
export async function renameOrganisation(
  tx: Tx,
  id: OrgId,
  name: string | undefined,
  check: Check = () => undefined,
): Promise<{ row: OrganisationRow; unchanged: boolean }> {
  const before = await lockOrganisation(tx, id);
  if (!before) throw new AppError('NOT_FOUND');
  check(before);
  if (name === undefined || name === before.name) return { row: before, unchanged: true };
  return { row: await updateOrganisation(tx, id, { name }), unchanged: false };
}

/**
 * Changes the billing address and notifies the old and the new one by mail. The change is rejected if one of them got too
 * many such mails, so that no mailbox is flooded and no change goes unannounced.
 * @throws AppError NOT_FOUND, RATE_LIMITED
 */
export async function changeBillingEmail(
  tx: Tx,
  id: OrgId,
  email: string,
  actor: string,
  mailbox: Mailbox,
  check: Check = () => undefined,
): Promise<{ row: OrganisationRow; previous: string }> {
  const before = await lockOrganisation(tx, id);
  if (!before) throw new AppError('NOT_FOUND');
  check(before);
  const previous = before.billing_email;
  if (previous === email) return { row: before, previous };
  const row = await updateOrganisation(tx, id, { billing_email: email });
  await appendPrivate(tx, {
    type: 'billing_email.changed',
    org_id: id,
    user_id: null,
    data: { organisation: { id, name: row.name }, previous, billing_email: email },
    actor,
  });
  const subject = `The billing address of ${row.name} was changed`;
  const text = `The billing address of the organisation ${row.name} (${id}) was changed from ${previous} to ${email}.

If you did not expect this, look at the audit log of the organisation, and change the passwords of its owners.
`;
  for (const to of [previous, email]) {
    await mailbox.post(tx, { kind: 'billing_email', from: id, to, subject, text }, TOLD_FOR_S);
  }
  return { row, previous };
}

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
