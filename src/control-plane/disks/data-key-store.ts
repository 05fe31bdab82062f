/**
 * SQL of `data_keys`: the data keys of instances, wrapped (encrypted). data-keys.ts says which ones an instance has.
 */
import { sql } from 'kysely';
import type { DataKey as SentKey } from '../../protocol/types.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

export type KeyUse = SentKey['use'];

export interface DataKeyRow {
  readonly instance_id: InstanceId;
  readonly key_id: string;
  readonly wrapped: Buffer;
  readonly use: KeyUse;
  /** Objects exist that are encrypted with it. */
  readonly used: boolean;
}

export async function insertDataKey(tx: Tx, row: DataKeyRow): Promise<void> {
  await tx.insertInto('data_keys').values(row).execute();
}

/** Does nothing when a key of that use exists meanwhile, or the instance is being deleted: its keys stay destroyed. */
export async function insertMissingDataKey(tx: Tx, row: DataKeyRow): Promise<void> {
  await sql`
    insert into data_keys (instance_id, key_id, wrapped, use, used)
    select id, ${row.key_id}, ${row.wrapped}, ${row.use}, ${row.used} from instances
    where id = ${row.instance_id} and not deleting for share
    on conflict do nothing`.execute(tx);
}

export async function listDataKeys(tx: Tx, instance_id: InstanceId) {
  return tx
    .selectFrom('data_keys')
    .select(['instance_id', 'key_id', 'wrapped', 'use', 'used', 'until_generation'])
    .where('instance_id', '=', instance_id)
    .orderBy('key_id')
    .execute();
}

/** From now on a fork needs this key. */
export async function markKeyUsed(tx: Tx, instance_id: InstanceId, key_id: string): Promise<void> {
  await tx
    .updateTable('data_keys')
    .set({ used: true })
    .where('instance_id', '=', instance_id)
    .where('key_id', '=', key_id)
    .where('used', '=', false)
    .execute();
}

/** Only a flush under way, which makes `until_generation`, may still write with it. */
export async function retireDataKey(
  tx: Tx,
  instance_id: InstanceId,
  key_id: string,
  until_generation: number,
): Promise<void> {
  await tx
    .updateTable('data_keys')
    .set({ use: 'reading', until_generation })
    .where('instance_id', '=', instance_id)
    .where('key_id', '=', key_id)
    .execute();
}

export async function deleteDataKeyRows(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx.deleteFrom('data_keys').where('instance_id', '=', instance_id).execute();
}
