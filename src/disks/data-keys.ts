/**
 * The keys that disks are encrypted with. A data key is 32 random bytes, kept in the database wrapped: sealed with a key
 * derived from the server's, bound to the instance and the key's id. Its rows are what makes the objects readable: when the
 * last instance that has a key is deleted, what was written with it is gone.
 *
 * An instance has one key for its disk's new objects and one for memory, and any number that only read. A fork copies the keys
 * that its parent's objects were written with, and the parent's key for new objects is replaced: nothing that the parent writes
 * after the fork opens with what the fork has. The memory key is copied by nobody.
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
  type KeyUse,
  listDataKeys,
  retireDataKey,
} from './data-key-store.ts';

/** How this installation keeps data keys, and whether new objects are encrypted. */
export interface DiskKeys {
  readonly sealer: Sealer;
  readonly encryption: boolean;
}

export interface InstanceKeys {
  /** What the disk's new objects are written with. */
  readonly own: DataKey;
  /** All, those for new objects and for memory too. */
  readonly keys: readonly (DataKey & { readonly use: KeyUse })[];
}

export function diskKeys(secret_key: Uint8Array, encryption: boolean): DiskKeys {
  return { sealer: new Sealer(secret_key, 'berth data keys v1'), encryption };
}

/** Gives a new instance its keys; also where new objects are not encrypted, so that they can be at any time. */
export async function makeDataKeys(tx: Tx, { sealer }: DiskKeys, instance_id: InstanceId): Promise<void> {
  for (const use of WRITING) await insertDataKey(tx, newKeyRow(sealer, instance_id, use));
}

const WRITING = ['disk', 'memory'] as const;

function newKeyRow(sealer: Sealer, instance_id: InstanceId, use: KeyUse): DataKeyRow {
  const { key_id, key } = newDataKey();
  return { instance_id, key_id, wrapped: wrap(sealer, instance_id, { key_id, key }), use, used: false };
}

/** As {@link openDataKeys}; what an instance has not yet, it gets now. */
export async function neededDataKeys(
  tx: Tx,
  disk_keys: DiskKeys,
  instance_id: InstanceId,
): Promise<InstanceKeys | null> {
  const there = await listDataKeys(tx, instance_id);
  const missing = WRITING.filter((use) => !there.some((row) => row.use === use));
  for (const use of missing) await insertMissingDataKey(tx, newKeyRow(disk_keys.sealer, instance_id, use));
  return openRows(disk_keys, instance_id, missing.length === 0 ? there : await listDataKeys(tx, instance_id));
}

/**
 * Gives the fork `to` the keys that objects of `from` were written with, wrapped anew, to read what it shares. From here on
 * `from` writes with another key. `head`: its generation; a flush of it that is under way may still be committed.
 * The caller has locked `from`.
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

/** The plain keys of an instance; null when it has none any more: it is being deleted. */
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
    ...{ key_id, use },
    key: unwrap(sealer, instance_id, key_id, wrapped),
  }));
  const own = present(
    keys.find(({ use }) => use === 'disk'),
    `the data key that ${instance_id} writes with`,
  );
  return { own: { key_id: own.key_id, key: own.key }, keys };
}

/**
 * Whether the instance may commit objects that are encrypted with these keys: with what it writes with now, or what it wrote with
 * when a flush that makes `generation` may have begun.
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
export function sentKeys({ keys }: InstanceKeys): SentKey[] {
  return keys.map(({ key_id, key, use }) => ({ key_id, key: Buffer.from(key).toString('base64'), use }));
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
