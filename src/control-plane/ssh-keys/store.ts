/**
 * SQL of SSH keys, and of which keys an instance accepts: those of its explicit key set, or in mode `account` those of
 * its creator.
 */
import { sql } from 'kysely';
import type { ApiKeyId, HostId, InstanceId, OrgId, SshKeyId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { rolesWith } from '../identity/permissions.ts';

const SHOWN = [
  'id',
  'name',
  'type',
  'fingerprint',
  'public_key',
  'org_id',
  'created_at',
  'last_used_at',
] as const;

export type SshKeyRow = Awaited<ReturnType<typeof insertSshKey>>;

export interface NewSshKey {
  readonly id: SshKeyId;
  readonly user_id: UserId;
  /** The only organisation in which it grants access; null: all of its owner's. */
  readonly org_id: OrgId | null;
  /** The API key that registers it; null: a session does. */
  readonly parent_key: ApiKeyId | null;
  readonly name: string;
  readonly type: string;
  readonly fingerprint: string;
  readonly public_key: string;
}

/** Which keys of an account a caller sees. */
export interface KeyView {
  readonly user_id: UserId;
  /** Only those that grant access in this organisation; null: all. */
  readonly usable_in: OrgId | null;
}

export async function insertSshKey(tx: Tx, key: NewSshKey) {
  return tx
    .insertInto('ssh_keys')
    .values({ ...key, last_used_at: null })
    .returning(SHOWN)
    .executeTakeFirstOrThrow();
}

function seen(tx: Tx, { user_id, usable_in }: KeyView) {
  const query = tx.selectFrom('ssh_keys').where('user_id', '=', user_id);
  if (usable_in === null) return query;
  return query.where((eb) => eb.or([eb('org_id', 'is', null), eb('org_id', '=', usable_in)]));
}

export async function listSshKeys(tx: Tx, view: KeyView, before: string | null, limit: number) {
  return seen(tx, view)
    .select(SHOWN)
    .$if(before !== null, (query) => query.where('id', '<', before as SshKeyId))
    .orderBy('id', 'desc')
    .limit(limit)
    .execute();
}

export async function findByFingerprint(tx: Tx, user_id: UserId, fingerprint: string) {
  return tx
    .selectFrom('ssh_keys')
    .select(['id', 'org_id'])
    .where('user_id', '=', user_id)
    .where('fingerprint', '=', fingerprint)
    .executeTakeFirst();
}

export async function countSshKeys(tx: Tx, user_id: UserId): Promise<number> {
  const row = await tx
    .selectFrom('ssh_keys')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('user_id', '=', user_id)
    .executeTakeFirstOrThrow();
  return row.count;
}

/** Locks the key against new use in key sets. Undefined when the caller sees no such key. */
export async function lockSshKey(tx: Tx, view: KeyView, id: SshKeyId) {
  return seen(tx, view).select(SHOWN).where('id', '=', id).forUpdate().executeTakeFirst();
}

export async function deleteSshKeys(tx: Tx, ids: readonly SshKeyId[]): Promise<void> {
  if (ids.length === 0) return;
  await tx
    .deleteFrom('ssh_keys')
    .where('id', 'in', [...ids])
    .execute();
}

/** The keys that these API keys registered, with their owners; locked. */
export async function lockRegisteredBy(tx: Tx, api_key_ids: readonly ApiKeyId[]) {
  return tx
    .selectFrom('ssh_keys')
    .select([...SHOWN, 'user_id'])
    .where('parent_key', 'in', [...api_key_ids])
    .orderBy('id')
    .forUpdate()
    .execute();
}

/** The keys of a member that belong to the organisation, locked. */
export async function lockKeysOfMember(tx: Tx, org_id: OrgId, user_id: UserId) {
  return tx
    .selectFrom('ssh_keys')
    .select(SHOWN)
    .where('org_id', '=', org_id)
    .where('user_id', '=', user_id)
    .orderBy('id')
    .forUpdate()
    .execute();
}

const WRITERS = rolesWith('instances:write');

const GRANT = [
  ...(['i.id as instance_id', 'i.org_id', 'i.ssh_key_mode', 'i.deleting'] as const),
  ...(['k.id', 'k.name', 'k.type', 'k.fingerprint', 'k.public_key'] as const),
  ...(['k.user_id as owner_id', 'k.org_id as only_org'] as const),
] as const;

/**
 * Which key grants access to which instance: those of an explicit set, or in mode `account` the creator's keys while the
 * creator's role may write instances. Only keys of members, and no key of another organisation. A union, so that each half
 * uses its indexes, from the instance or from the key.
 */
function grants(tx: Tx) {
  const of_creators = tx
    .selectFrom('instances as i')
    .innerJoin('ssh_keys as k', (join) => join.on(sql<boolean>`k.user_id = i.created_by`))
    .select(GRANT)
    .where('i.ssh_key_mode', '=', 'account');
  const chosen = tx
    .selectFrom('instances as i')
    .innerJoin('instance_ssh_keys as s', 's.instance_id', 'i.id')
    .innerJoin('ssh_keys as k', 'k.id', 's.ssh_key_id')
    .select(GRANT)
    .where('i.ssh_key_mode', '=', 'explicit');
  return tx
    .selectFrom(of_creators.unionAll(chosen).as('g'))
    .innerJoin('memberships as m', (join) =>
      join.onRef('m.org_id', '=', 'g.org_id').onRef('m.user_id', '=', 'g.owner_id'),
    )
    .where((eb) => eb.or([eb('g.only_org', 'is', null), eb('g.only_org', '=', eb.ref('g.org_id'))]))
    .where((eb) => eb.or([eb('g.ssh_key_mode', '=', 'explicit'), eb('m.role', 'in', [...WRITERS])]));
}

/** The keys that grant access to these instances. */
export function allowedKeys(tx: Tx, instance_ids: readonly InstanceId[]) {
  return grants(tx)
    .select(['g.instance_id', 'g.id', 'g.name', 'g.type', 'g.fingerprint', 'g.public_key', 'g.owner_id'])
    .where('g.instance_id', '=', sql<InstanceId>`any(${[...instance_ids]}::text[])`)
    .orderBy('g.id', 'desc');
}

/** The organisations with an instance that the key grants access to. */
export async function organisationsGranted(tx: Tx, id: SshKeyId): Promise<OrgId[]> {
  const rows = await grants(tx)
    .select('g.org_id')
    .distinct()
    .where('g.id', '=', id)
    .where('g.deleting', '=', false)
    .orderBy('g.org_id')
    .execute();
  return rows.map((row) => row.org_id);
}

/** Sets `last_used_at` of the instance's keys with these fingerprints. */
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

/** Keys of members, except those of another organisation. */
function memberKeys(tx: Tx, org_id: OrgId) {
  return tx
    .selectFrom('ssh_keys as k')
    .innerJoin('memberships as m', 'm.user_id', 'k.user_id')
    .where('m.org_id', '=', org_id)
    .where((eb) => eb.or([eb('k.org_id', 'is', null), eb('k.org_id', '=', org_id)]));
}

/** Those of `ids` that the organisation may use. Locks the keys and their memberships until the transaction's end. */
export async function holdMemberKeys(tx: Tx, org_id: OrgId, ids: readonly SshKeyId[]): Promise<Set<string>> {
  if (ids.length === 0) return new Set();
  const rows = await memberKeys(tx, org_id)
    .select('k.id')
    .where('k.id', 'in', [...ids])
    .forKeyShare(['k', 'm'])
    .execute();
  return new Set(rows.map((row) => row.id));
}

/** The keys that a key set of the organisation's instances may contain. */
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

export interface VmOnHost {
  readonly instance_id: InstanceId;
  readonly host_id: HostId;
}

/** VMs that allow, or may allow, keys of this user. */
export async function vmsOfUserKeys(tx: Tx, user_id: UserId): Promise<VmOnHost[]> {
  const { rows } = await sql<VmOnHost>`
    select instance_id, host_id from vms
    where state <> 'stopped' and instance_id in (
      select id from instances where created_by = ${user_id}
      union select s.instance_id from instance_ssh_keys s join ssh_keys k on k.id = s.ssh_key_id
      where k.user_id = ${user_id}
    )`.execute(tx);
  return rows;
}

/** All keys of an account. */
export async function sshKeyIdsOf(tx: Tx, user_id: UserId): Promise<SshKeyId[]> {
  const rows = await tx.selectFrom('ssh_keys').select('id').where('user_id', '=', user_id).execute();
  return rows.map(({ id }) => id);
}
