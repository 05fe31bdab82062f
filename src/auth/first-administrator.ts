import { sql } from 'kysely';
import { type Db, transaction } from '../db/pool.ts';
import { hashPassword } from './passwords.ts';
import { insertAccount } from './register.ts';

/**
 * Makes the first account, the owner of the first organisation, unless there is an account already.
 * Returns whether it did. `keep` runs before it is committed: no account is made whose password nobody has.
 */
export async function createFirstAdministrator(
  db: Db,
  email: string,
  password: string,
  keep: () => Promise<void> = async () => undefined,
): Promise<boolean> {
  const present = await db.selectFrom('users').select('id').limit(1).executeTakeFirst();
  if (present) return false;
  const password_hash = await hashPassword(password);
  return transaction(db, async (tx) => {
    await sql`lock table users in share row exclusive mode`.execute(tx);
    if (await tx.selectFrom('users').select('id').limit(1).executeTakeFirst()) return false;
    await insertAccount(tx, { email, name: 'Administrator', password_hash });
    await keep();
    return true;
  });
}
