/** The tables of the audit log. */
import type { ColumnType, GeneratedAlways } from 'kysely';
import type { AuditId, OrgId } from '../../shared/ids.ts';

export interface AuditTables {
  audit_heads: { org_id: OrgId; seq: number; mac: Buffer };
  audit_log: {
    org_id: OrgId;
    /** The entry's number in the chain; null: not sealed yet. */
    seq: number | null;
    id: AuditId;
    at: Date;
    actor: string;
    action: string;
    target: string | null;
    ip: string | null;
    request_id: string | null;
    data: ColumnType<Record<string, unknown>, string, string>;
    /** Of the entry alone until it is sealed, of the chain from then on. */
    mac: Buffer;
    serial: GeneratedAlways<number>;
  };
}
