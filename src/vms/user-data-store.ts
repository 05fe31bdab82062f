/**
 * A script for an instance's first boot. It is kept until the disk that has run it is durable, then erased: a first
 * boot whose disk was lost runs it again on the new one. That it runs once on a disk, the disk itself knows.
 */
import type { Tx } from '../db/pool.ts';
import type { HostId, VmId } from '../lib/ids.ts';

/** For the host that has the VM; null when there is none (any more). */
export async function readUserData(tx: Tx, host_id: HostId, vm_id: VmId): Promise<string | null> {
  const row = await tx
    .selectFrom('vms as v')
    .innerJoin('user_data as u', 'u.instance_id', 'v.instance_id')
    .select('u.script')
    .where('v.id', '=', vm_id)
    .where('v.host_id', '=', host_id)
    .executeTakeFirst();
  return row?.script ?? null;
}

/** The guest has it, on its disk. */
export async function markUserDataGiven(tx: Tx, host_id: HostId, vm_id: VmId): Promise<void> {
  await tx
    .updateTable('user_data')
    .set({ given: true })
    .where('instance_id', 'in', (eb) =>
      eb
        .selectFrom('vms')
        .select('instance_id')
        .where('vms.id', '=', vm_id)
        .where('vms.host_id', '=', host_id),
    )
    .execute();
}
