/**
 * Slots: what identifies an instance's VMs on a host. Their user, TAP device and own address derive from it. An instance keeps
 * its slot on a host for life, because its files there belong to that user; on another host it may have another.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import type { HostId, InstanceId } from '../lib/ids.ts';

/**
 * Gives the instance a slot on the host, unless it has one: the number of its SSH port, or the lowest free one.
 * @throws AppError UNAVAILABLE when all 65,535 are given away
 */
export async function keepSlot(tx: Tx, host_id: HostId, instance_id: InstanceId): Promise<void> {
  for (;;) {
    if (await hasSlot(tx, host_id, instance_id)) return;
    const slot = await freeSlot(tx, host_id, instance_id);
    if (slot === null) throw await noneLeft(tx, host_id);
    // A concurrent placement may choose the same slot. This one then waits for that transaction, and chooses again.
    const { numInsertedOrUpdatedRows } = await tx
      .insertInto('host_slots')
      .values({ host_id, instance_id, slot })
      .onConflict((conflict) => conflict.doNothing())
      .executeTakeFirstOrThrow();
    if (numInsertedOrUpdatedRows === 1n) return;
  }
}

async function hasSlot(tx: Tx, host_id: HostId, instance_id: InstanceId): Promise<boolean> {
  const kept = await tx
    .selectFrom('host_slots')
    .select('slot')
    .where('host_id', '=', host_id)
    .where('instance_id', '=', instance_id)
    .executeTakeFirst();
  return kept !== undefined;
}

async function freeSlot(tx: Tx, host_id: HostId, instance_id: InstanceId): Promise<number | null> {
  const { rows } = await sql<{ slot: number | null }>`
    select coalesce(
      (select i.ssh_port where not exists (
        select from host_slots taken where taken.host_id = ${host_id} and taken.slot = i.ssh_port)),
      -- Rarely needed: it reads the host's slots.
      (select slot from (
        select 1 as slot union all select slot + 1 from host_slots where host_id = ${host_id} and slot < 65535
      ) candidates
      where not exists (
        select from host_slots taken where taken.host_id = ${host_id} and taken.slot = candidates.slot)
      order by slot limit 1)) as slot
    from instances i where i.id = ${instance_id}`.execute(tx);
  return rows[0]?.slot ?? null;
}

async function noneLeft(tx: Tx, host_id: HostId): Promise<AppError> {
  const { name } = await tx
    .selectFrom('hosts')
    .select('name')
    .where('id', '=', host_id)
    .executeTakeFirstOrThrow();
  return new AppError('UNAVAILABLE', {
    message: `The host ${name} has run 65,535 instances that still exist, and can run no other one. Its operator can cordon it, or drain it and join it anew.`,
  });
}
