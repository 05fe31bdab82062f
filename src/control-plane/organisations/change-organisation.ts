import { AppError } from '../../shared/errors.ts';
import type { OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { type Mailbox, TOLD_FOR_S } from '../mail/mailbox.ts';
import { lockOrganisation, type OrganisationRow, updateOrganisation } from './store.ts';

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
