/**
 * The user_data script for an instance's first boot. The disk records that it has run there. The database keeps the script
 * until that disk is durable, so that a first boot whose disk was lost can run it again, and then erases it.
 */
import { sql } from 'kysely';
import type { HostId, VmId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** For the host of the instance's newest VM while that may write; null when the script was erased or never given. */
export async function readUserData(tx: Tx, host_id: HostId, vm_id: VmId): Promise<string | null> {
  const { rows } = await sql<{ script: string }>`
    select u.script from user_data u join (${writingVm(host_id, vm_id)}) v using (instance_id)`.execute(tx);
  return rows[0]?.script ?? null;
}

/** The guest has stored it on its disk. False when the VM is not, or no longer, that host's. */
export async function markUserDataGiven(tx: Tx, host_id: HostId, vm_id: VmId): Promise<boolean> {
  const { rows } = await sql`${writingVm(host_id, vm_id)}`.execute(tx);
  await sql`
    update user_data set given = true
    where instance_id in (${writingVm(host_id, vm_id)})`.execute(tx);
  return rows.length > 0;
}

function writingVm(host_id: HostId, vm_id: VmId) {
  return sql`
    select v.instance_id from vms v
    where v.id = ${vm_id} and v.host_id = ${host_id} and v.state not in ('stopped', 'suspended')
      and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot)`;
}
