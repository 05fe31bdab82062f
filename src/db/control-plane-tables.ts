/** The tables of control planes, and of what they share. */
import type { Generated } from 'kysely';

export interface ControlPlaneTables {
  installation: {
    only_one: Generated<boolean>;
    key_check: Buffer;
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
