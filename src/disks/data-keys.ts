/**
 * The keys that disks are encrypted with. A data key is 32 random bytes, made with its instance and kept in the database
 * wrapped: sealed with a key derived from the server's, bound to the instance and the key's id. Its rows are what makes the
 * objects readable: when the last instance that has a key is deleted, what was written with it is gone.
 *
 * A plain key goes to the host that has the instance's VM, and to tasks here. It is never logged or written elsewhere.
 */
import type { DataKey as SentKey } from '../agent-api/types.ts';
import type { Tx } from '../db/pool.ts';
import { type DataKey, newDataKey } from '../disk-format/key-ring.ts';
import { present } from '../lib/assert.ts';
import type { InstanceId } from '../lib/ids.ts';
import { Sealer } from '../lib/seal.ts';
import {
  type DataKeyRow,
  deleteDataKeyRows,
  findSomeDataKey,
  insertDataKey,
  insertMissingDataKey,
  listDataKeys,
} from './data-key-store.ts';

/** How this installation keeps data keys, and whether new objects are encrypted. */
export interface DiskKeys {
  readonly sealer: Sealer;
  readonly encryption: boolean;
}

export interface InstanceKeys {
  /** What the instance writes with. */
  readonly own: DataKey;
  /** All, the own one too. */
  readonly keys: readonly DataKey[];
}

export function diskKeys(secret_key: Uint8Array, encryption: boolean): DiskKeys {
  return { sealer: new Sealer(secret_key, 'berth data keys v1'), encryption };
}

/** Gives a new instance its own key; also where new objects are not encrypted, so that they can be at any time. */
export async function makeDataKey(tx: Tx, { sealer }: DiskKeys, instance_id: InstanceId): Promise<void> {
  await insertDataKey(tx, newKeyRow(sealer, instance_id));
}

function newKeyRow(sealer: Sealer, instance_id: InstanceId): DataKeyRow {
  const { key_id, key } = newDataKey();
  return { instance_id, key_id, wrapped: wrap(sealer, instance_id, { key_id, key }), own: true };
}

/** As {@link openDataKeys}; an instance from before there were keys gets its own now, if it is to be encrypted. */
export async function neededDataKeys(
  tx: Tx,
  disk_keys: DiskKeys,
  instance_id: InstanceId,
): Promise<InstanceKeys | null> {
  const present_keys = await openDataKeys(tx, disk_keys, instance_id);
  if (present_keys !== null || !disk_keys.encryption) return present_keys;
  await insertMissingDataKey(tx, newKeyRow(disk_keys.sealer, instance_id));
  return openDataKeys(tx, disk_keys, instance_id);
}

/** Gives `to` the keys of `from`, wrapped anew, to read the segments that it shares; its own it has already. */
export async function shareDataKeys(
  tx: Tx,
  { sealer }: DiskKeys,
  from: InstanceId,
  to: InstanceId,
): Promise<void> {
  for (const { key_id, wrapped } of await listDataKeys(tx, from)) {
    const key = { key_id, key: unwrap(sealer, from, key_id, wrapped) };
    await insertDataKey(tx, { instance_id: to, key_id, wrapped: wrap(sealer, to, key), own: false });
  }
}

/** The plain keys of an instance; null when it has none any more: it is being deleted. */
export async function openDataKeys(
  tx: Tx,
  { sealer }: DiskKeys,
  instance_id: InstanceId,
): Promise<InstanceKeys | null> {
  const rows = await listDataKeys(tx, instance_id);
  if (rows.length === 0) return null;
  const keys = rows.map(({ key_id, wrapped }) => ({
    key_id,
    key: unwrap(sealer, instance_id, key_id, wrapped),
  }));
  const own = present(
    rows.find((row) => row.own),
    `the own data key of ${instance_id}`,
  );
  return {
    own: present(
      keys.find(({ key_id }) => key_id === own.key_id),
      'an opened key',
    ),
    keys,
  };
}

/** Whether those that are there open with this installation's key; null: there is none. */
export async function dataKeysOpen(tx: Tx, { sealer }: DiskKeys): Promise<boolean | null> {
  const some = await findSomeDataKey(tx);
  return some === undefined
    ? null
    : sealer.open(some.wrapped, boundTo(some.instance_id, some.key_id)) !== null;
}

/** In the transaction that deletes the instance: from its commit on nobody can read what only it could. */
export async function destroyDataKeys(tx: Tx, instance_id: InstanceId): Promise<void> {
  await deleteDataKeyRows(tx, instance_id);
}

/** As they go to a host. */
export function sentKeys({ own, keys }: InstanceKeys): SentKey[] {
  return keys.map(({ key_id, key }) => ({
    key_id,
    key: Buffer.from(key).toString('base64'),
    own: key_id === own.key_id,
  }));
}

function wrap(sealer: Sealer, instance_id: InstanceId, { key_id, key }: DataKey): Buffer {
  return sealer.seal(Buffer.from(key).toString('base64'), boundTo(instance_id, key_id));
}

function unwrap(sealer: Sealer, instance_id: InstanceId, key_id: string, wrapped: Buffer): Buffer {
  const opened = sealer.open(wrapped, boundTo(instance_id, key_id));
  if (opened === null) {
    throw new Error(
      `the data key ${key_id} of ${instance_id} does not open: BERTH_SECRET_KEY is not the one that it was wrapped with`,
    );
  }
  return Buffer.from(opened, 'base64');
}

function boundTo(instance_id: InstanceId, key_id: string): string {
  return `${instance_id} ${key_id}`;
}
