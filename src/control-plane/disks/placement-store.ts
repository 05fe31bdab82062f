/** An instance's disk is placed on the host of its newest VM, and on no other. */
import { sql } from 'kysely';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

export interface Placement {
  readonly deleting: boolean;
  readonly disk_epoch: number;
  /** Of the newest VM; null when there was none, or its host has released a deleted instance. */
  readonly vm_id: VmId | null;
  readonly host_id: HostId | null;
  readonly state: string | null;
}

/** Undefined when there is no such instance. */
export async function findPlacement(tx: Tx, instance_id: InstanceId): Promise<Placement | undefined> {
  const { rows } = await sql<Placement>`
    select i.deleting, d.epoch as disk_epoch, v.id as vm_id, v.host_id, v.state
    from instances i join disks d on d.instance_id = i.id
    left join lateral (
      select id, host_id, state, released from vms where instance_id = i.id order by boot desc limit 1
    ) v on not v.released
    where i.id = ${instance_id}`.execute(tx);
  return rows[0];
}

/** Whether its VM may write, or has unsaved writes. */
export function mayWrite({ deleting, state }: Pick<Placement, 'deleting' | 'state'>): boolean {
  return !deleting && state !== null && state !== 'stopped' && state !== 'suspended';
}

/** Those of `ids` whose newest VM is on that host. */
export async function placedOn(
  tx: Tx,
  host_id: HostId,
  ids: readonly InstanceId[],
): Promise<ReadonlySet<InstanceId>> {
  if (ids.length === 0) return new Set();
  const { rows } = await sql<{ id: InstanceId }>`
    select i.id from unnest(${[...ids]}::text[]) as i (id)
    join lateral (select host_id from vms where instance_id = i.id order by boot desc limit 1) v
      on v.host_id = ${host_id}`.execute(tx);
  return new Set(rows.map(({ id }) => id));
}
