/**
 * Registers and revokes the SSH keys of accounts. Hosts of VMs that accept a changed key are notified, so that they
 * update the guests (`notifyKeyChange`).
 */
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { type ApiKeyId, newId, type OrgId, type SshKeyId, type UserId } from '../../shared/ids.ts';
import { type QuotaLimits, requireWithin } from '../../shared/quotas.ts';
import { notifyAll } from '../db/notify.ts';
import { isForeignKeyOf, type Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal, userOf } from '../identity/principal.ts';
import { lockUser } from '../identity/store.ts';
import { parsePublicKey } from './public-key.ts';
import {
  countSshKeys,
  deleteSshKeys,
  findByFingerprint,
  insertSshKey,
  type KeyView,
  lockKeysOfMember,
  lockRegisteredBy,
  lockSshKey,
  organisationsGranted,
  type SshKeyRow,
  type VmOnHost,
  vmsOfUserKeys,
} from './store.ts';

/** An SSH key as the API shows it. */
export function sshKeyView(row: SshKeyRow) {
  return {
    ...row,
    created_at: rfc3339(row.created_at),
    last_used_at: row.last_used_at === null ? null : rfc3339(row.last_used_at),
  };
}

/** Wakes hosts to push changed keys to these VMs, and ingresses to hold connections until the guests confirm. */
export async function notifyKeyChange(tx: Tx, vms: readonly VmOnHost[]): Promise<void> {
  const hosts = new Set(vms.map(({ host_id }) => host_id));
  await notifyAll(tx, 'host', [...hosts]);
  await notifyAll(
    tx,
    'routes',
    vms.map(({ instance_id }) => instance_id),
  );
}

/** A key that was added or revoked, and the organisations concerned: each gets an event, and must get an audit entry. */
export interface ChangedKey {
  readonly row: SshKeyRow;
  readonly org_ids: readonly OrgId[];
}

/** A session sees all keys of its account; an API key only those usable in its organisation. */
export function keyViewOf(principal: Principal): KeyView {
  const usable_in = principal.credential.kind === 'session' ? null : principal.org_id;
  return { user_id: userOf(principal), usable_in };
}

/**
 * Registers a key on the caller's account. A key registered by an API key is usable only in the API key's organisation.
 * @throws AppError INVALID_REQUEST, CONFLICT, QUOTA_EXCEEDED
 */
export async function addSshKey(
  tx: Tx,
  quotas: QuotaLimits,
  principal: Principal,
  request: { name: string; public_key: string },
): Promise<ChangedKey> {
  const { type, fingerprint, line } = parsePublicKey(request.public_key);
  const { user_id, usable_in: org_id } = keyViewOf(principal);
  // Serialises registrations, so that the quota counts them all.
  await lockUser(tx, user_id);
  const known = await findByFingerprint(tx, user_id, fingerprint);
  if (known) throw new AppError('CONFLICT', { message: alreadyRegistered(known, org_id) });
  requireWithin('ssh_keys', quotas.ssh_keys, await countSshKeys(tx, user_id));
  const { credential } = principal;
  const key = {
    id: newId('key'),
    user_id,
    org_id,
    name: request.name,
    type,
    fingerprint,
    public_key: line,
    parent_key: credential.kind === 'api_key' ? credential.id : null,
  };
  const row = await insertSshKey(tx, key).catch((cause: unknown) => {
    // The API key, or the membership behind it, has ended meanwhile.
    throw isForeignKeyOf(cause, 'ssh_keys') ? new AppError('UNAUTHENTICATED', { cause }) : cause;
  });
  const org_ids = await concernedOrgs(tx, principal, row);
  for (const each of org_ids) {
    await append(tx, {
      org_id: each,
      type: 'ssh_key.added',
      data: { ssh_key: sshKeyView(row) },
      actor: actorOf(principal),
      // Only one of the events goes to the account itself.
      ...(each === principal.org_id ? { user_id } : {}),
    });
  }
  await notifyKeyChange(tx, await vmsOfUserKeys(tx, user_id));
  return { row, org_ids };
}

/** An API key does not learn the names of other organisations. */
function alreadyRegistered(
  known: { readonly id: SshKeyId; readonly org_id: OrgId | null },
  usable_in: OrgId | null,
): string {
  if (known.org_id === null) return 'This key is already registered on your account.';
  if (known.org_id === usable_in)
    return 'This key is already registered on your account, for this organisation.';
  return usable_in === null
    ? `This key is already registered on your account, for instances of ${known.org_id} only. To use it everywhere, revoke ${known.id} and register it again.`
    : 'This key is already registered on your account, for another organisation. To use it everywhere, log in, revoke it and register it again.';
}

/** The organisations where the key grants access, and the key's own organisation; the caller's if there are none. */
async function concernedOrgs(tx: Tx, principal: Principal, { id, org_id }: SshKeyRow): Promise<OrgId[]> {
  const own = org_id ?? principal.org_id;
  return [...new Set([own, ...(await organisationsGranted(tx, id))])];
}

/** Revokes a key of the caller's account, and notifies the hosts of every VM that allowed it. @throws AppError NOT_FOUND */
export async function revokeSshKey(tx: Tx, principal: Principal, id: SshKeyId): Promise<ChangedKey> {
  const view = keyViewOf(principal);
  const row = await lockSshKey(tx, view, id);
  if (!row) throw new AppError('NOT_FOUND');
  const vms = await vmsOfUserKeys(tx, view.user_id);
  const changed = await deleteKey(tx, principal, row);
  await notifyKeyChange(tx, vms);
  return changed;
}

/** Revokes the keys that these API keys of the caller's organisation registered. The caller has locked the API keys. */
export async function revokeRegisteredBy(
  tx: Tx,
  principal: Principal,
  api_key_ids: readonly ApiKeyId[],
): Promise<ChangedKey[]> {
  const changed: ChangedKey[] = [];
  const vms: VmOnHost[] = [];
  for (const { user_id, ...row } of await lockRegisteredBy(tx, api_key_ids)) {
    vms.push(...(await vmsOfUserKeys(tx, user_id)));
    changed.push(await deleteKey(tx, principal, row));
  }
  await notifyKeyChange(tx, vms);
  return changed;
}

/** The caller has locked the key. */
async function deleteKey(tx: Tx, principal: Principal, row: SshKeyRow): Promise<ChangedKey> {
  const org_ids = await concernedOrgs(tx, principal, row);
  await deleteSshKeys(tx, [row.id]);
  for (const org_id of org_ids) await appendRevoked(tx, org_id, actorOf(principal), row);
  return { row, org_ids };
}

/** Revokes a member's keys that belong to the organisation. The caller notifies the hosts. */
export async function revokeKeysOfMember(
  tx: Tx,
  org_id: OrgId,
  user_id: UserId,
  actor: string,
): Promise<void> {
  const rows = await lockKeysOfMember(tx, org_id, user_id);
  await deleteSshKeys(
    tx,
    rows.map(({ id }) => id),
  );
  for (const row of rows) await appendRevoked(tx, org_id, actor, row);
}

async function appendRevoked(tx: Tx, org_id: OrgId, actor: string, row: SshKeyRow): Promise<void> {
  await append(tx, { org_id, type: 'ssh_key.revoked', data: { ssh_key: sshKeyView(row) }, actor });
}
