/**
 * SQL of instances' secrets, and of the certificate authorities for them. Values and private keys are stored encrypted.
 */
import { sql } from 'kysely';
import type { InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

export type SecretRow = Awaited<ReturnType<typeof listSecrets>>[number];

const now = sql<Date>`date_trunc('milliseconds', now())`;

/** Without values; newest first. `before`: the serial of the last one seen. */
export async function listSecrets(tx: Tx, instance_id: InstanceId, before: string | null, limit: number) {
  return tx
    .selectFrom('secrets')
    .select([
      sql<string>`serial::text`.as('id'),
      'name',
      'hosts',
      'updated_at',
      sql<boolean>`value is not null`.as('has_value'),
    ])
    .where('instance_id', '=', instance_id)
    .$if(before !== null, (query) => query.where('serial', '<', Number(before)))
    .orderBy('serial', 'desc')
    .limit(limit)
    .execute();
}

/** The names of an instance's secrets. */
export async function secretNames(tx: Tx, instance_id: InstanceId): Promise<ReadonlySet<string>> {
  const rows = await tx.selectFrom('secrets').select('name').where('instance_id', '=', instance_id).execute();
  return new Set(rows.map(({ name }) => name));
}

export interface NewSecret {
  readonly instance_id: InstanceId;
  readonly name: string;
  readonly hosts: string[];
  readonly placeholder: string;
  /** Sealed. */
  readonly value: Buffer | null;
}

/** One that exists keeps its placeholder. */
export async function upsertSecret(tx: Tx, secret: NewSecret): Promise<void> {
  const { hosts, value } = secret;
  await tx
    .insertInto('secrets')
    .values({ ...secret, updated_at: now })
    .onConflict((conflict) =>
      conflict.columns(['instance_id', 'name']).doUpdateSet({ hosts, value, updated_at: now }),
    )
    .execute();
}

/** The hosts that it was for; undefined: there is none. */
export async function deleteSecret(tx: Tx, instance_id: InstanceId, name: string) {
  const row = await tx
    .deleteFrom('secrets')
    .where('instance_id', '=', instance_id)
    .where('name', '=', name)
    .returning('hosts')
    .executeTakeFirst();
  await deleteUnusedAuthority(tx, instance_id);
  return row?.hosts;
}

export async function deleteSecrets(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx.deleteFrom('secrets').where('instance_id', '=', instance_id).execute();
  await deleteUnusedAuthority(tx, instance_id);
}

/** In the order of their creation. */
export async function sealedSecrets(tx: Tx, instance_ids: readonly InstanceId[]) {
  if (instance_ids.length === 0) return [];
  return tx
    .selectFrom('secrets')
    .select(['instance_id', 'name', 'hosts', 'placeholder', 'value'])
    .where('instance_id', 'in', instance_ids)
    .orderBy('serial')
    .execute();
}

export async function findAuthorities(tx: Tx, ids: readonly InstanceId[]) {
  if (ids.length === 0) return [];
  return tx
    .selectFrom('instance_authorities')
    .select(['instance_id', 'certificate', 'private_key'])
    .where('instance_id', 'in', ids)
    .execute();
}

export interface NewAuthority {
  readonly instance_id: InstanceId;
  readonly certificate: string;
  /** Sealed. */
  readonly private_key: Buffer;
}

export async function insertAuthority(tx: Tx, authority: NewAuthority): Promise<void> {
  await tx.insertInto('instance_authorities').values(authority).execute();
}

/** So that the next secret begins with another one. */
async function deleteUnusedAuthority(tx: Tx, instance_id: InstanceId): Promise<void> {
  await tx
    .deleteFrom('instance_authorities')
    .where('instance_id', '=', instance_id)
    .where((eb) =>
      eb.not(
        eb.exists(eb.selectFrom('secrets').select('serial').where('secrets.instance_id', '=', instance_id)),
      ),
    )
    .execute();
}
