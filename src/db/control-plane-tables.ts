/** The tables of control planes, and of what they share. */
import type { Generated } from 'kysely';

export interface ControlPlaneTables {
  installation: {
    only_one: Generated<boolean>;
    root_key: Buffer;
    new_root_key: Buffer | null;
    hosts_certificate: string | null;
    hosts_key: Buffer | null;
  };
  control_planes: {
    id: string;
    url: string;
    fingerprint: string;
    started_at: Generated<Date>;
    seen_at: Generated<Date>;
  };
}
