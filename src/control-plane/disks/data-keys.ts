/**
 * Makes and opens the data keys of instances, shares them with forks, and destroys them. A data key is 32 random bytes.
 * The database has each one wrapped: sealed with a key that is derived from the root key, and bound to the instance and
 * the data key's id.
 *
 * - An instance has one key for new objects of its disk, one for memory, and any number for reading.
 * - A fork gets the keys that its parent's objects are encrypted with. The parent gets a new key for writing, so the
 *   fork cannot read what the parent writes later. The memory key is never copied.
 * - A plain key goes only to the host of the instance's VM and to tasks here. It is never logged or stored.
 * - Once every instance with a key is deleted, the objects that this key encrypts are unreadable.
 */
import { type DataKey, newDataKey } from '../../disk-format/frame-cipher.ts';
import type { DataKey as SentKey } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import {
  type DataKeyRow,
  deleteDataKeyRows,
  insertDataKey,
  insertMissingDataKey,
  type KeyUse,
  listDataKeys,
  retireDataKey,
} from './data-key-store.ts';

/** Seals data keys; says whether new objects are encrypted. */
export interface DiskKeys {
  readonly sealer: Sealer;
  readonly encryption: boolean;
}

export interface InstanceKeys {
  /** Encrypts the disk's new objects. */
  readonly own: DataKey;
  /** All keys, for every use. */
  readonly keys: readonly (DataKey & { readonly use: KeyUse })[];
}

export function diskKeys(root_key: Uint8Array, encryption: boolean): DiskKeys {
  return { sealer: new Sealer(root_key, 'berth data keys v1'), encryption };
}

/** Gives a new instance its keys, even if encryption is off, so that it can be switched on at any time. */
export async function makeDataKeys(tx: Tx, { sealer }: DiskKeys, instance_id: InstanceId): Promise<void> {
  for (const use of WRITING) await insertDataKey(tx, newKeyRow(sealer, instance_id, use));
}

const WRITING = ['disk', 'memory'] as const;

function newKeyRow(sealer: Sealer, instance_id: InstanceId, use: KeyUse): DataKeyRow {
  const { key_id, key } = newDataKey();
  return { instance_id, key_id, wrapped: wrap(sealer, instance_id, { key_id, key }), use, used: false };
}

/** As {@link openDataKeys}, but creates the keys that the instance lacks. */
export async function ensureDataKeys(
  tx: Tx,
  disk_keys: DiskKeys,
  instance_id: InstanceId,
): Promise<InstanceKeys | null> {
  const found = await listDataKeys(tx, instance_id);
  const missing = WRITING.filter((use) => !found.some((row) => row.use === use));
  for (const use of missing) await insertMissingDataKey(tx, newKeyRow(disk_keys.sealer, instance_id, use));
  return openRows(disk_keys, instance_id, missing.length === 0 ? found : await listDataKeys(tx, instance_id));
}

/**
 * Gives the fork `to` the keys of `from`'s objects for reading, wrapped for it, and gives `from` a new key for writing. A
 * flush of `from` that is under way may still commit generation `head` + 1 with the old key. The caller has locked `from`.
 */
export async function shareDataKeys(
  tx: Tx,
  { sealer }: DiskKeys,
  from: InstanceId,
  to: InstanceId,
  head: number,
): Promise<void> {
  for (const { key_id, wrapped, use, used } of await listDataKeys(tx, from)) {
    if (use === 'memory' || !used) continue;
    const key = { key_id, key: unwrap(sealer, from, key_id, wrapped) };
    const copy = wrap(sealer, to, key);
    await insertDataKey(tx, { instance_id: to, key_id, wrapped: copy, use: 'reading', used: true });
    if (use !== 'disk') continue;
    await retireDataKey(tx, from, key_id, head + 1);
    await insertDataKey(tx, newKeyRow(sealer, from, 'disk'));
  }
}

/** The plain keys of an instance; null when it is being deleted. */
export async function openDataKeys(
  tx: Tx,
  disk_keys: DiskKeys,
  instance_id: InstanceId,
): Promise<InstanceKeys | null> {
  return openRows(disk_keys, instance_id, await listDataKeys(tx, instance_id));
}

function openRows(
  { sealer }: DiskKeys,
  instance_id: InstanceId,
  rows: readonly Pick<DataKeyRow, 'key_id' | 'wrapped' | 'use'>[],
): InstanceKeys | null {
  if (rows.length === 0) return null;
  const keys = rows.map(({ key_id, wrapped, use }) => ({
    key_id,
    use,
    key: unwrap(sealer, instance_id, key_id, wrapped),
  }));
  const own = present(
    keys.find(({ use }) => use === 'disk'),
    `the writing key of ${instance_id}`,
  );
  return { own: { key_id: own.key_id, key: own.key }, keys };
}

/**
 * Whether the instance may commit `generation` with objects under these keys: its present key for writing, or one that was
 * retired while a flush of that generation could be under way.
 */
export async function mayWriteWith(
  tx: Tx,
  instance_id: InstanceId,
  key_ids: ReadonlySet<string>,
  generation: number,
): Promise<boolean> {
  if (key_ids.size === 0) return true;
  const rows = await listDataKeys(tx, instance_id);
  const allowed = rows.filter(
    ({ use, until_generation }) =>
      use === 'disk' || (until_generation !== null && generation <= until_generation),
  );
  return [...key_ids].every((key_id) => allowed.some((row) => row.key_id === key_id));
}

/** Runs in the transaction that deletes the instance: its commit makes the instance's objects unreadable. */
export async function destroyDataKeys(tx: Tx, instance_id: InstanceId): Promise<void> {
  await deleteDataKeyRows(tx, instance_id);
}

/** The keys as a host gets them. */
export function sentKeys({ keys }: InstanceKeys): SentKey[] {
  return keys.map(({ key_id, key, use }) => ({ key_id, key: Buffer.from(key).toString('base64'), use }));
}

function wrap(sealer: Sealer, instance_id: InstanceId, { key_id, key }: DataKey): Buffer {
  return sealer.seal(Buffer.from(key).toString('base64'), boundTo(instance_id, key_id));
}

function unwrap(sealer: Sealer, instance_id: InstanceId, key_id: string, wrapped: Buffer): Buffer {
  const opened = sealer.open(wrapped, boundTo(instance_id, key_id));
  if (opened === null) {
    throw new Error(`the data key ${key_id} of ${instance_id} does not open with the root key`);
  }
  return Buffer.from(opened, 'base64');
}

function boundTo(instance_id: InstanceId, key_id: string): string {
  return `${instance_id} ${key_id}`;
}
