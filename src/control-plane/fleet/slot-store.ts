/**
 * Slots: what identifies an instance's VMs on a host. Their user, TAP device and own address derive from it. An instance keeps
 * its slot on a host for life, because its files there belong to that user; on another host it may have another.
 */
import { sql } from 'kysely';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/**
 * Gives the instance a slot on the host, unless it has one: the number of its SSH port, or the lowest free one. False: all 65,535
 * are given away. The caller has locked the host's use, so nobody else gives away a slot of it.
 */
export async function keepSlot(tx: Tx, host_id: HostId, instance_id: InstanceId): Promise<boolean> {
  const kept = await tx
    .selectFrom('host_slots')
    .select('slot')
    .where('host_id', '=', host_id)
    .where('instance_id', '=', instance_id)
    .executeTakeFirst();
  if (kept) return true;
  const { numAffectedRows } = await sql`
    insert into host_slots (host_id, instance_id, slot)
    select ${host_id}, i.id, free.slot
    from instances i, lateral (
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
    ) free
    where i.id = ${instance_id} and free.slot is not null`.execute(tx);
  return numAffectedRows === 1n;
}
