import type { OrgId, ServiceAccountId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

const SHOWN = ['id', 'name', 'scope', 'created_at'] as const;

export type ServiceAccountRow = Awaited<ReturnType<typeof insertServiceAccount>>;

export interface NewServiceAccount {
  readonly id: ServiceAccountId;
  readonly org_id: OrgId;
  readonly name: string;
  readonly scope: string;
  readonly created_by: UserId;
}

export async function insertServiceAccount(tx: Tx, account: NewServiceAccount) {
  return tx.insertInto('service_accounts').values(account).returning(SHOWN).executeTakeFirstOrThrow();
}

export async function findServiceAccount(tx: Tx, org_id: OrgId, id: ServiceAccountId) {
  return tx
    .selectFrom('service_accounts')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .executeTakeFirst();
}

export async function listServiceAccounts(tx: Tx, org_id: OrgId, before: string | null, limit: number) {
  let query = tx.selectFrom('service_accounts').select(SHOWN).where('org_id', '=', org_id);
  if (before !== null) query = query.where('id', '<', before as ServiceAccountId);
  return query.orderBy('id', 'desc').limit(limit).execute();
}

/** Deletes the account with its keys (foreign key) and notifications. */
export async function deleteServiceAccount(tx: Tx, org_id: OrgId, id: ServiceAccountId) {
  const gone = await tx
    .deleteFrom('service_accounts')
    .where('org_id', '=', org_id)
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirst();
  // After the account: raising notifications locks the account.
  if (gone) await tx.deleteFrom('notifications').where('recipient', '=', id).execute();
  return gone;
}
