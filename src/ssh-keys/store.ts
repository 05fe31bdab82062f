import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { HostId, InstanceId, OrgId, SshKeyId, UserId } from '../lib/ids.ts';

const SHOWN = ['id', 'name', 'type', 'fingerprint', 'public_key', 'created_at', 'last_used_at'] as const;

export type SshKeyRow = Awaited<ReturnType<typeof insertSshKey>>;

export interface NewSshKey {
  readonly id: SshKeyId;
  readonly user_id: UserId;
  readonly name: string;
  readonly type: string;
  readonly fingerprint: string;
  readonly public_key: string;
}

export async function insertSshKey(tx: Tx, key: NewSshKey) {
  return tx
    .insertInto('ssh_keys')
    .values({ ...key, last_used_at: null })
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

export async function listSshKeys(tx: Tx, user_id: UserId, before: string | null, limit: number) {
  return tx
    .selectFrom('ssh_keys')
    .select(SHOWN)
    .where('user_id', '=', user_id)
    .$if(before !== null, (query) => query.where('id', '<', before as SshKeyId))
    .orderBy('id', 'desc')
    .limit(limit)
    .execute();
}

export async function countSshKeys(tx: Tx, user_id: UserId): Promise<number> {
  const row = await tx
    .selectFrom('ssh_keys')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('user_id', '=', user_id)
    .executeTakeFirstOrThrow();
  return row.count;
}

/** Until the transaction's end no instance begins to let the key in. */
export async function lockSshKey(tx: Tx, user_id: UserId, id: SshKeyId): Promise<void> {
  await tx
    .selectFrom('ssh_keys')
    .select('id')
    .where('user_id', '=', user_id)
    .where('id', '=', id)
    .forUpdate()
    .execute();
}

export async function deleteSshKey(tx: Tx, user_id: UserId, id: SshKeyId) {
  return tx
    .deleteFrom('ssh_keys')
    .where('user_id', '=', user_id)
    .where('id', '=', id)
    .returning(SHOWN)
    .executeTakeFirst();
}

/** The keys that an instance lets in: an explicit set, or in mode `account` all of its creator's. */
export function allowedKeys(tx: Tx, instance_ids: readonly InstanceId[]) {
  return (
    tx
      .selectFrom('instances as i')
      .innerJoin('ssh_keys as k', (join) =>
        join.on((eb) =>
          eb.or([
            eb.and([
              eb('i.ssh_key_mode', '=', 'account'),
              eb(sql<string>`k.user_id`, '=', eb.ref('i.created_by')),
            ]),
            eb.and([
              eb('i.ssh_key_mode', '=', 'explicit'),
              eb.exists(
                eb
                  .selectFrom('instance_ssh_keys as s')
                  .select('s.ssh_key_id')
                  .whereRef('s.instance_id', '=', 'i.id')
                  .whereRef('s.ssh_key_id', '=', 'k.id'),
              ),
            ]),
          ]),
        ),
      )
      // Only members' keys: leaving the organisation takes the key along.
      .innerJoin('memberships as m', (join) =>
        join.onRef('m.org_id', '=', 'i.org_id').onRef('m.user_id', '=', 'k.user_id'),
      )
      .select([
        'i.id as instance_id',
        'k.id',
        'k.name',
        'k.type',
        'k.fingerprint',
        'k.public_key',
        'k.user_id as owner_id',
      ])
      .where('i.id', 'in', [...instance_ids])
      .orderBy('k.id', 'desc')
  );
}

/** Those of an instance's keys with these fingerprints have just let somebody in. */
export async function markKeysUsed(
  tx: Tx,
  instance_id: InstanceId,
  fingerprints: readonly string[],
): Promise<void> {
  const allowed = await allowedKeys(tx, [instance_id]).execute();
  const ids = allowed.filter((key) => fingerprints.includes(key.fingerprint)).map((key) => key.id);
  if (ids.length === 0) return;
  await tx.updateTable('ssh_keys').set({ last_used_at: sql`now()` }).where('id', 'in', ids).execute();
}

function memberKeys(tx: Tx, org_id: OrgId) {
  return tx
    .selectFrom('ssh_keys as k')
    .innerJoin('memberships as m', 'm.user_id', 'k.user_id')
    .where('m.org_id', '=', org_id);
}

/** Which of `ids` are keys of members of the organisation; until the transaction's end neither ceases to be. */
export async function holdMemberKeys(tx: Tx, org_id: OrgId, ids: readonly SshKeyId[]): Promise<Set<string>> {
  if (ids.length === 0) return new Set();
  const rows = await memberKeys(tx, org_id)
    .select('k.id')
    .where('k.id', 'in', [...ids])
    .forKeyShare(['k', 'm'])
    .execute();
  return new Set(rows.map((row) => row.id));
}

/** The keys of the organisation's members: what an instance's key set can be made of. */
export async function listMemberKeys(tx: Tx, org_id: OrgId, before: string | null, limit: number) {
  return memberKeys(tx, org_id)
    .select(['k.id', 'k.name', 'k.type', 'k.fingerprint', 'k.user_id as owner_id'])
    .$if(before !== null, (query) => query.where('k.id', '<', before as SshKeyId))
    .orderBy('k.id', 'desc')
    .limit(limit)
    .execute();
}

export async function replaceKeySet(
  tx: Tx,
  instance_id: InstanceId,
  mode: 'account' | 'explicit',
  ids: readonly SshKeyId[],
): Promise<void> {
  await tx.deleteFrom('instance_ssh_keys').where('instance_id', '=', instance_id).execute();
  if (ids.length > 0) {
    await tx
      .insertInto('instance_ssh_keys')
      .values(ids.map((ssh_key_id) => ({ instance_id, ssh_key_id })))
      .execute();
  }
  await tx
    .updateTable('instances')
    .set({ ssh_key_mode: mode, version: sql`version + 1`, updated_at: sql`now()` })
    .where('id', '=', instance_id)
    .execute();
}

/** Hosts with a VM that lets in (or may let in) keys of this user: they must hear of a change. */
export async function hostsOfUserKeys(tx: Tx, user_id: UserId): Promise<HostId[]> {
  const rows = await tx
    .selectFrom('vms as v')
    .innerJoin('instances as i', 'i.id', 'v.instance_id')
    .select('v.host_id')
    .distinct()
    .where('v.state', '!=', 'stopped')
    .where((eb) =>
      eb.or([
        eb('i.created_by', '=', user_id),
        eb.exists(
          eb
            .selectFrom('instance_ssh_keys as s')
            .innerJoin('ssh_keys as k', 'k.id', 's.ssh_key_id')
            .select('s.instance_id')
            .whereRef('s.instance_id', '=', 'i.id')
            .where('k.user_id', '=', user_id),
        ),
      ]),
    )
    .execute();
  return rows.map((row) => row.host_id);
}

/** Of an account, whatever they are for. */
export async function sshKeyIdsOf(tx: Tx, user_id: UserId): Promise<SshKeyId[]> {
  const rows = await tx.selectFrom('ssh_keys').select('id').where('user_id', '=', user_id).execute();
  return rows.map(({ id }) => id);
}
