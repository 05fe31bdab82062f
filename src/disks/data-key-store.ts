import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { InstanceId } from '../lib/ids.ts';

export interface DataKeyRow {
  readonly instance_id: InstanceId;
  readonly key_id: string;
  readonly wrapped: Buffer;
  readonly own: boolean;
}

export async function insertDataKey(tx: Tx, row: DataKeyRow): Promise<void> {
  await tx.insertInto('data_keys').values(row).execute();
}

/** Nothing where there is one by now, and where the instance is being deleted: its keys are destroyed for good. */
export async function insertMissingDataKey(tx: Tx, row: DataKeyRow): Promise<void> {
  await sql`
    insert into data_keys (instance_id, key_id, wrapped, own)
    select id, ${row.key_id}, ${row.wrapped}, ${row.own} from instances
    where id = ${row.instance_id} and not deleting for share
    on conflict do nothing`.execute(tx);
}

export async function listDataKeys(tx: Tx, instance_id: InstanceId): Promise<DataKeyRow[]> {
  return tx
    .selectFrom('data_keys')
    .select(['instance_id', 'key_id', 'wrapped', 'own'])
    .where('instance_id', '=', instance_id)
    .orderBy('key_id')
    .execute();
}

/** Any one, to try a key on. */
export async function findSomeDataKey(tx: Tx): Promise<DataKeyRow | undefined> {
  return tx
    .selectFrom('data_keys')
    .select(['instance_id', 'key_id', 'wrapped', 'own'])
    .limit(1)
    .executeTakeFirst();
}

export async function deleteDataKeyRows(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx.deleteFrom('data_keys').where('instance_id', '=', instance_id).execute();
}
