import { allQuotas } from '../../shared/quotas.ts';
import { type Db, transaction } from '../db/pool.ts';
import { insertAccount } from './account-store.ts';
import { hashPassword } from './passwords.ts';
import { hasUsers, lockUsers } from './store.ts';

/**
 * Creates the first account unless one exists, and returns whether it did. The account owns the first organisation, which has
 * no quotas and operates the installation. `keep` stores the password before the commit, so that no account exists without a
 * known password.
 */
export async function createFirstAdministrator(
  db: Db,
  email: string,
  password: string,
  keep: () => Promise<void> = async () => undefined,
): Promise<boolean> {
  if (await hasUsers(db)) return false;
  const password_hash = await hashPassword(password);
  return transaction(db, async (tx) => {
    await lockUsers(tx);
    if (await hasUsers(tx)) return false;
    const account = { email, name: 'Administrator', password_hash, email_confirmed: true };
    await insertAccount(tx, account, { quotas: allQuotas(null), operator: true });
    await keep();
    return true;
  });
}
