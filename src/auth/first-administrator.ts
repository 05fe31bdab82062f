import { type Db, transaction } from '../db/pool.ts';
import { allQuotas } from '../lib/quotas.ts';
import { insertAccount } from './account-store.ts';
import { hashPassword } from './passwords.ts';
import { hasUsers, lockUsers } from './store.ts';

/**
 * Makes the first account, the owner of the first organisation, whose quotas are unlimited, unless there is an account already.
 * Returns whether it did. `keep` runs before it is committed: no account is made whose password nobody has.
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
    await insertAccount(tx, account, allQuotas(null));
    await keep();
    return true;
  });
}
