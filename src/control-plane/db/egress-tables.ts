/** The table of what VMs were denied to reach. */
import type { InstanceId } from '../../shared/ids.ts';

export interface EgressTables {
  denied_destinations: {
    instance_id: InstanceId;
    destination: string;
    port: number;
    name: string | null;
    address: string | null;
    at: Date;
    attempts: number;
    event_at: Date | null;
  };
}
