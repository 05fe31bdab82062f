import { sql } from 'kysely';
import { AppError } from '../../shared/errors.ts';
import { newId, type UserId } from '../../shared/ids.ts';
import type { OwnQuotas } from '../../shared/quotas.ts';
import type { Tx } from '../db/pool.ts';
import { violates } from '../db/pool.ts';

/** Maximum length of an organisation's name, in characters. */
const NAME_LENGTH = 100;

export interface NewAccount {
  readonly email: string;
  readonly name: string;
  /** Null: the account has no password. */
  readonly password_hash: string | null;
  readonly email_confirmed: boolean;
}

/** How the first administrator's organisation differs from those that sign-ups make. */
export interface OwnOrganisation {
  readonly quotas: OwnQuotas;
  /** Its owners and admins operate the installation. */
  readonly operator: boolean;
}

/** Creates an account and its own organisation. @throws AppError CONFLICT when the address is taken */
export async function insertAccount(
  tx: Tx,
  account: NewAccount,
  { quotas, operator }: OwnOrganisation = { quotas: {}, operator: false },
): Promise<UserId> {
  const user_id = await insertUser(tx, account);
  const org_id = newId('org');
  const name = [...(account.name || account.email)].slice(0, NAME_LENGTH).join('');
  const org = { id: org_id, name, billing_email: account.email, created_by: user_id };
  await tx
    .insertInto('organisations')
    .values({ ...org, quotas: JSON.stringify(quotas), operator })
    .execute();
  // Earlier than other memberships of the same transaction, so that this organisation counts as the first.
  const created_at = sql<Date>`now() - interval '1 millisecond'`;
  await tx.insertInto('memberships').values({ org_id, user_id, role: 'owner', created_at }).execute();
  return user_id;
}

/** Creates an account, which still needs an organisation. @throws AppError CONFLICT when the address is taken */
export async function insertUser(tx: Tx, account: NewAccount): Promise<UserId> {
  const user_id = newId('usr');
  try {
    await tx
      .insertInto('users')
      .values({ id: user_id, email_key: account.email.toLowerCase(), ...account })
      .execute();
  } catch (error) {
    if (!violates(error, 'users_email_key_key')) throw error;
    throw new AppError('CONFLICT', {
      message: 'An account with this e-mail address exists already.',
      cause: error,
    });
  }
  return user_id;
}
