/** The tables of control planes, and of what they share. */
import type { Generated } from 'kysely';
import type { OrgId } from '../../shared/ids.ts';

export interface ControlPlaneTables {
  installation: {
    only_one: Generated<boolean>;
    root_key: Buffer;
    new_root_key: Buffer | null;
    hosts_certificate: string | null;
    hosts_key: Buffer | null;
    next_certificate: string | null;
    next_key: Buffer | null;
    next_told_at: Date | null;
    next_told_seconds: Generated<number>;
  };
  control_planes: {
    id: string;
    url: string;
    fingerprint: string;
    started_at: Generated<Date>;
    seen_at: Generated<Date>;
  };
  /** `control-plane/db/shared-limit.ts`. `expire`: milliseconds since 1970. */
  request_counts: { key: string; points: number; expire: number | null };
  /** `control-plane/organisations/store.ts` */
  open_streams: { org_id: OrgId; control_plane: string; count: number; seen_at: Generated<Date> };
}
