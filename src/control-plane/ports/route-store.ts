/** The routes of HTTP ports, for the ingress. */
import { sql } from 'kysely';
import type { HttpRoute } from '../../protocol/http-port-types.ts';
import type { HostId, HttpPortId, InstanceId } from '../../shared/ids.ts';
import type { Access } from '../db/http-tables.ts';
import type { Tx } from '../db/pool.ts';
import { type HttpEndpoint, hostnameOf } from './model.ts';

interface Row {
  readonly id: HttpPortId;
  readonly instance_id: InstanceId;
  readonly label: string;
  readonly custom: readonly string[];
  readonly port: number;
  readonly access: Access;
  readonly wake_on_connect: boolean;
  readonly moving: boolean | null;
  readonly state: string | null;
  readonly resets: number | null;
  readonly host_id: HostId | null;
}

/**
 * Of `only` these instances; null: of all. `near`: the host whose VMs the ingress dials itself. It reaches all others by a tunnel
 * through their agents.
 */
export async function listHttpRoutes(
  tx: Tx,
  endpoint: HttpEndpoint,
  near: HostId | null,
  only: readonly InstanceId[] | null = null,
): Promise<HttpRoute[]> {
  const { rows } = await sql<Row>`
    select p.id, p.instance_id, p.label, p.port, p.access, i.wake_on_connect, v.state, v.resets, v.host_id, v.moving,
      array(select h.hostname from http_hostnames h
        where h.port_id = p.id and h.active_at is not null order by h.hostname) as custom
    from http_ports p
    join instances i on i.id = p.instance_id and not i.deleting
    left join lateral (
      select state, resets, host_id,
        -- As isMoving in control-plane/vms/model.ts.
        move is not null or (state = 'starting' and reason_code = 'host_drain') as moving
      from vms where instance_id = i.id order by boot desc limit 1
    ) v on true
    ${only === null ? sql`` : sql`where p.instance_id = any(${[...only]}::text[])`}
    order by p.id`.execute(tx);
  return rows.map((row) => {
    // A guest that restarts accepts nothing new: requests wait for its end.
    const reachable = row.state === 'running';
    return {
      port_id: row.id,
      instance_id: row.instance_id,
      hostnames: [hostnameOf(endpoint, row.label), ...row.custom],
      port: row.port,
      access: row.access,
      target: reachable ? (near !== null && row.host_id === near ? 'local' : 'tunnel') : null,
      resets: row.resets ?? 0,
      // A request does not start a failed VM: it would fail again and again.
      wake: (row.wake_on_connect || row.moving === true) && row.state !== 'failed',
    };
  });
}
