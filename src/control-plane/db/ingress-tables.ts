/** The tables of ingresses and SSH addresses. */
import type { Generated } from 'kysely';
import type { HostId, IngressId, InstanceId } from '../../shared/ids.ts';

export interface IngressTables {
  /** `control-plane/fleet/control-plane-store.ts` */
  ingresses: {
    id: IngressId;
    name: string;
    token_hash: Buffer;
    /** The host of the same machine; null: on another machine. */
    host_id: HostId | null;
    created_at: Generated<Date>;
    protocol: Generated<number | null>;
    watching_since: Generated<Date | null>;
    reported_at: Generated<Date | null>;
  };
  /** `control-plane/instances/ssh-address-store.ts` */
  free_ssh_ports: { host: Generated<string>; port: number; quarantined_at: Date | null };
  /** `control-plane/fleet/host-store.ts` */
  host_slots: { host_id: HostId; slot: number; instance_id: InstanceId };
}
