/** What VMs use of hosts. */
import type { Generated } from 'kysely';
import type { HostId, OrgId } from '../../shared/ids.ts';

export interface HostTables {
  host_use: { host_id: HostId; vms: Generated<number>; memory_mib: Generated<number> };
  host_org_use: { host_id: HostId; org_id: OrgId; vms: Generated<number> };
}
