import { present } from '../../shared/assert.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import { type InstanceId, isId, type SshKeyId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { notifyKeyChange } from '../ssh-keys/notify-key-change.ts';
import { allowedKeys, holdMemberKeys, replaceKeySet } from '../ssh-keys/store.ts';
import { lockInstanceOf, refuseDeleting } from './lock-instance.ts';
import { findInstance } from './store.ts';
import { instanceView } from './view.ts';

export interface KeySet {
  readonly mode: 'account' | 'explicit';
  readonly data: readonly {
    id: SshKeyId;
    name: string;
    type: string;
    fingerprint: string;
    owner_id: string;
  }[];
  readonly version: number;
}

/** The SSH keys that an instance allows. @throws AppError NOT_FOUND */
export async function readKeySet(tx: Tx, principal: Principal, id: InstanceId): Promise<KeySet> {
  const row = await findInstance(tx, principal.org_id, id);
  if (!row) throw new AppError('NOT_FOUND');
  const keys = await allowedKeys(tx, [id]).execute();
  const data = keys.map(({ id, name, type, fingerprint, owner_id }) => ({
    id,
    name,
    type,
    fingerprint,
    owner_id,
  }));
  return { mode: row.ssh_key_mode, data, version: row.version };
}

/** Replaces the whole set, or returns to mode `account` (ids null). Takes effect at once. */
export async function replaceKeys(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
  ids: readonly string[] | null,
  /** Gets the set found under the lock; throws to refuse. */
  check: (present: KeySet) => void,
): Promise<KeySet> {
  const wanted = [...new Set(ids ?? [])];
  const malformed = wanted.find((each) => !isId('key', each));
  if (malformed !== undefined) throw notUsable(malformed.slice(0, 60));
  const row = await lockInstanceOf(tx, principal, id);
  refuseDeleting(row);
  check(await readKeySet(tx, principal, id));
  const known = await holdMemberKeys(tx, principal.org_id, wanted as SshKeyId[]);
  const foreign = wanted.find((each) => !known.has(each));
  if (foreign !== undefined) throw notUsable(foreign);
  await replaceKeySet(tx, id, ids === null ? 'account' : 'explicit', wanted as SshKeyId[]);
  const set = await readKeySet(tx, principal, id);
  const after = present(await findInstance(tx, principal.org_id, id), 'instance after its change');
  await append(tx, {
    org_id: principal.org_id,
    instance_id: id,
    type: 'instance.ssh_keys_replaced',
    data: { instance: instanceView(after), ssh_keys: { mode: set.mode, data: set.data } },
    actor: actorOf(principal),
  });
  await notifyKeyChange(tx, row.host_id === null ? [] : [{ instance_id: id, host_id: row.host_id }]);
  return set;
}

function notUsable(id: string): AppError {
  return invalid('ssh_key_ids', `"${id}" is not an SSH key of a member that this organisation may use`);
}
