/** The tables of usage. */
import type { Generated } from 'kysely';
import type { InstanceId, OrgId } from '../../shared/ids.ts';

export interface UsageTables {
  usage_hours: {
    instance_id: InstanceId;
    org_id: OrgId;
    hour: Date;
    running_seconds: Generated<number>;
    cpu_seconds: Generated<number>;
    memory_mib_seconds: Generated<number>;
    stored_byte_seconds: Generated<number>;
    flushed_bytes: Generated<number>;
    http_bytes: Generated<number>;
  };
  usage_clock: { one: Generated<boolean>; counted_until: Generated<Date>; stored_until: Generated<Date> };
}
