import { sql } from 'kysely';
import { type Db, transaction } from '../db/pool.ts';
import { newId } from '../lib/ids.ts';
import { hashPassword } from './passwords.ts';

/**
 * Makes the first account, the owner of the first organisation, unless there is an account already.
 * Returns whether it did.
 */
export async function createFirstAdministrator(db: Db, email: string, password: string): Promise<boolean> {
  const present = await db.selectFrom('users').select('id').limit(1).executeTakeFirst();
  if (present) return false;
  const password_hash = await hashPassword(password);
  return transaction(db, async (tx) => {
    await sql`lock table users in share row exclusive mode`.execute(tx);
    if (await tx.selectFrom('users').select('id').limit(1).executeTakeFirst()) return false;
    const user_id = newId('usr');
    const org_id = newId('org');
    await tx
      .insertInto('users')
      .values({ id: user_id, email, email_key: email.toLowerCase(), name: 'Administrator', password_hash })
      .execute();
    await tx
      .insertInto('organisations')
      .values({ id: org_id, name: 'default', billing_email: email })
      .execute();
    await tx.insertInto('memberships').values({ org_id, user_id, role: 'owner' }).execute();
    return true;
  });
}
