/**
 * A script for an instance's first boot. It is kept until the disk that has run it is durable, then erased: a first
 * boot whose disk was lost runs it again on the new one. That it runs once on a disk, the disk itself knows.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { HostId, VmId } from '../lib/ids.ts';

/** For the host of the instance's newest VM, while that may write; null when there is none (any more). */
export async function readUserData(tx: Tx, host_id: HostId, vm_id: VmId): Promise<string | null> {
  const { rows } = await sql<{ script: string }>`
    select u.script from user_data u join (${lively(host_id, vm_id)}) v using (instance_id)`.execute(tx);
  return rows[0]?.script ?? null;
}

/** The guest has it, on its disk. False when the VM is not (or no longer) that host's. */
export async function markUserDataGiven(tx: Tx, host_id: HostId, vm_id: VmId): Promise<boolean> {
  const { rows } = await sql`${lively(host_id, vm_id)}`.execute(tx);
  await sql`
    update user_data set given = true
    where instance_id in (${lively(host_id, vm_id)})`.execute(tx);
  return rows.length > 0;
}

function lively(host_id: HostId, vm_id: VmId) {
  return sql`
    select v.instance_id from vms v
    where v.id = ${vm_id} and v.host_id = ${host_id} and v.state not in ('stopped', 'suspended')
      and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot)`;
}
