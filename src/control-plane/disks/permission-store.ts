/** What decides which objects a host may use now: where instances are placed, and which objects they hold. */
import { sql } from 'kysely';
import type { HostId, InstanceId, VmId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

export interface WritablePlacement {
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly generation: number;
}

/** Those of `ids` whose newest VM is on that host and may write, with the state of their disks. */
export async function writableHere(
  tx: Tx,
  host_id: HostId,
  ids: readonly InstanceId[],
): Promise<ReadonlyMap<InstanceId, WritablePlacement>> {
  if (ids.length === 0) return new Map();
  const { rows } = await sql<WritablePlacement & { instance_id: InstanceId }>`
    select i.id as instance_id, v.id as vm_id, d.epoch, d.generation
    from instances i join disks d on d.instance_id = i.id
    join lateral (
      select id, host_id, state, released from vms where instance_id = i.id order by boot desc limit 1
    ) v on v.host_id = ${host_id} and not v.released and v.state not in ('stopped', 'suspended')
    where i.id = any(${[...ids]}::text[]) and not i.deleting`.execute(tx);
  return new Map(rows.map(({ instance_id, ...placement }) => [instance_id, placement]));
}

/** Which of `keys` are held by instances whose newest VM is on the host and may write. */
export async function heldHere(
  tx: Tx,
  host_id: HostId,
  keys: readonly string[],
): Promise<ReadonlySet<string>> {
  if (keys.length === 0) return new Set();
  // Laterally, so that each object is looked up for the host's few instances, and not among the forks of a popular one.
  const { rows } = await sql<{ key: string }>`
    with mine as materialized (
      select v.instance_id from vms v join instances i on i.id = v.instance_id
      where v.host_id = ${host_id} and v.state not in ('stopped', 'suspended') and not v.released and not i.deleting
        and not exists (select from vms newer where newer.instance_id = v.instance_id and newer.boot > v.boot))
    select k.key from unnest(${[...keys]}::text[]) as k (key)
    where exists (
      select from mine cross join lateral (
        select from segment_holders h where h.key = k.key and h.instance_id = mine.instance_id limit 1) h)`.execute(
    tx,
  );
  return new Set(rows.map(({ key }) => key));
}

/** Those of `vms` and keys of memory that belong together: the VM resumes from it, or may have to. */
export async function memoryOf(
  tx: Tx,
  wanted: readonly { readonly key: string; readonly vm_id: VmId }[],
): Promise<ReadonlySet<string>> {
  if (wanted.length === 0) return new Set();
  const { rows } = await sql<{ key: string }>`
    select m.key from memory_images m
    join unnest(${wanted.map(({ key }) => key)}::text[], ${wanted.map(({ vm_id }) => vm_id)}::text[]) as w (key, vm_id)
      on m.key = w.key and m.vm_id = w.vm_id`.execute(tx);
  return new Set(rows.map(({ key }) => key));
}
