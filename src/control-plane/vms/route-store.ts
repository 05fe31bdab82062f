/** SQL that reads the SSH routes of an ingress: each instance's SSH address, and where connections to it go now. */
import { sql } from 'kysely';
import { type IngressRoute, TUNNEL } from '../../protocol/ingress-types.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { allowedKeys } from '../ssh-keys/store.ts';
import { isMoving, type VmState } from './model.ts';

/**
 * Of `only` these instances; null: of all. `near`: the host whose VMs the ingress dials itself. It reaches all others by a tunnel
 * through their agents.
 */
export async function listRoutes(
  tx: Tx,
  near: HostId | null,
  only: readonly InstanceId[] | null = null,
): Promise<IngressRoute[]> {
  const rows = await tx
    .selectFrom('instances as i')
    .leftJoinLateral(
      (eb) =>
        eb
          .selectFrom('vms')
          .select(['vms.state', 'vms.resets', 'vms.ssh_address', 'vms.applied_keys', 'vms.host_id'])
          .select(['vms.move', 'vms.reason_code'])
          .whereRef('vms.instance_id', '=', 'i.id')
          .orderBy('vms.boot', 'desc')
          .limit(1)
          .as('v'),
      (join) => join.onTrue(),
    )
    .select([
      'i.id',
      'i.ssh_host',
      'i.ssh_port',
      'i.wake_on_connect',
      'v.state',
      'v.resets',
      'v.ssh_address',
      'v.applied_keys',
      'v.host_id',
      'v.move',
      'v.reason_code',
    ])
    .where('i.deleting', '=', false)
    .$if(only !== null, (query) =>
      query.where('i.id', '=', sql<InstanceId>`any(${[...(only ?? [])]}::text[])`),
    )
    .orderBy('i.id')
    .execute();
  const reachable = rows.filter((row) => row.ssh_address !== null && isReachable(row.state));
  const allowed = await fingerprints(
    tx,
    reachable.map((row) => row.id),
  );
  const targets = new Map(reachable.map((row) => [row.id, row]));
  return rows.map((row) => {
    const applied = targets.get(row.id)?.applied_keys ?? [];
    // Empty for an instance without a target.
    const wanted = allowed.get(row.id) ?? new Set<string>();
    return {
      instance_id: row.id,
      host: row.ssh_host,
      port: row.ssh_port,
      target: targetOf(targets.get(row.id), near),
      resets: row.resets ?? 0,
      revoking: applied.some((each) => !wanted.has(each)),
      settling: [...wanted].some((each) => !applied.includes(each)),
      // A connection does not start a failed VM: it would fail again and again.
      wake: (row.wake_on_connect || isMoving(row)) && row.state !== 'failed',
    };
  });
}

/** An address that another machine reported is never dialled: the control plane opens a tunnel instead. */
function targetOf(
  vm: { id: InstanceId; ssh_address: string | null; host_id: HostId | null } | undefined,
  near: HostId | null,
): string | null {
  if (vm === undefined) return null;
  return near !== null && vm.host_id === near ? vm.ssh_address : `${TUNNEL}${vm.id}`;
}

function isReachable(state: VmState | null): boolean {
  return state === 'running' || state === 'restarting';
}

async function fingerprints(
  tx: Tx,
  ids: readonly InstanceId[],
): Promise<ReadonlyMap<InstanceId, ReadonlySet<string>>> {
  const found = new Map<InstanceId, Set<string>>();
  if (ids.length === 0) return found;
  for (const { instance_id, fingerprint } of await allowedKeys(tx, ids).execute()) {
    const set = found.get(instance_id);
    if (set) set.add(fingerprint);
    else found.set(instance_id, new Set([fingerprint]));
  }
  return found;
}
