/**
 * SQL of memory images, the saved memory of suspended VMs. A start assigns the image to the new boot. The image stays
 * until the guest is reported as running or the VM is to stop, because a start that failed may not have used it. Only
 * the object store knows whether it was used (disk-format/memory-format.ts).
 *
 * An image that is assigned to no VM is orphaned: the task `free-memory` deletes its objects.
 */
import { sql } from 'kysely';
import type { MemoryRef } from '../../protocol/types.ts';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';

/** Records the VM's one memory image, or an orphan when it is not `wanted`. Idempotent. */
export async function recordMemory(
  tx: Tx,
  vm: { readonly id: VmId; readonly instance_id: InstanceId },
  ref: MemoryRef,
  wanted: boolean,
): Promise<void> {
  if (wanted) await orphanMemory(tx, vm.id, ref.key);
  await tx
    .insertInto('memory_images')
    .values({
      key: ref.key,
      instance_id: vm.instance_id,
      vm_id: wanted ? vm.id : null,
      ref: JSON.stringify(ref),
    })
    .onConflict((conflict) => conflict.column('key').doNothing())
    .execute();
}

/** Whether `key_id` is the instance's memory key. */
export async function isMemoryKey(tx: Tx, instance_id: InstanceId, key_id: string): Promise<boolean> {
  const row = await tx
    .selectFrom('data_keys')
    .select('use')
    .where('instance_id', '=', instance_id)
    .where('key_id', '=', key_id)
    .executeTakeFirst();
  return row?.use === 'memory';
}

/** Orphans the VM's memory, except `except`: its guest runs, it is to stop, or it was saved again. */
export async function orphanMemory(tx: Tx, vm_id: VmId, except = ''): Promise<void> {
  await tx
    .updateTable('memory_images')
    .set({ vm_id: null })
    .where('vm_id', '=', vm_id)
    .where('key', '!=', except)
    .execute();
}

/** Whether a start of the VM resumes from memory. */
export async function hasMemory(tx: Tx, vm_id: VmId): Promise<boolean> {
  const row = await tx
    .selectFrom('memory_images')
    .select('key')
    .where('vm_id', '=', vm_id)
    .executeTakeFirst();
  return row !== undefined;
}

/** The host that saved the VM's memory; undefined: it has none. */
export async function memorySavedOn(tx: Tx, vm_id: VmId): Promise<HostId | undefined> {
  const { rows } = await sql<{ host_id: HostId }>`
    select v.host_id from memory_images m
    join vms v on v.instance_id = m.instance_id and v.epoch = (m.ref->>'epoch')::int
    where m.vm_id = ${vm_id} limit 1`.execute(tx);
  return rows[0]?.host_id;
}

/** In the transaction that inserts `to`, so that from then on only `to` is offered it. */
export async function reassignMemory(tx: Tx, from: VmId, to: VmId): Promise<void> {
  await tx.updateTable('memory_images').set({ vm_id: to }).where('vm_id', '=', from).execute();
}

/** Object keys of memory that no VM will resume from. */
export async function listOrphanedMemory(db: Db, limit: number): Promise<string[]> {
  const { rows } = await sql<{ key: string }>`
    select m.key from memory_images m
    where not exists (select from vms v where v.id = m.vm_id and v.state in ('suspended', 'starting', 'failed')
      and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot))
    order by m.key limit ${limit}`.execute(db);
  return rows.map(({ key }) => key);
}

export async function deleteMemory(db: Db, key: string): Promise<void> {
  await db.deleteFrom('memory_images').where('key', '=', key).execute();
}
