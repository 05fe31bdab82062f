/** The tables of HTTP ports. */
import type { ColumnType, Generated } from 'kysely';
import type { HttpPortId, InstanceId, OrgId, SessionId } from '../../shared/ids.ts';

type NullableJson<T> = ColumnType<T | null, string | null, string | null>;

export const ACCESSES = ['private', 'public'] as const;
export type Access = (typeof ACCESSES)[number];

/** An answer of Berth instead of the guest. */
export interface HttpError {
  readonly at: string;
  readonly code: string;
  readonly message: string;
}

export interface HttpTables {
  http_labels: { label: string };
  http_ports: {
    id: HttpPortId;
    instance_id: InstanceId;
    label: string;
    port: number;
    access: Access;
    version: Generated<number>;
    created_at: Generated<Date>;
    updated_at: Generated<Date>;
  };
  http_port_use: {
    port_id: HttpPortId;
    minute: Date;
    requests: number;
    previous_requests: number;
    sent_bytes: Generated<number>;
    received_bytes: Generated<number>;
    last_error: NullableJson<HttpError>;
  };
  http_hostnames: {
    port_id: HttpPortId;
    hostname: string;
    proof: string;
    active_at: Date | null;
    checked_at: Date | null;
    problem: string | null;
    next_check_at: Generated<Date>;
    created_at: Generated<Date>;
  };
  http_tickets: {
    ticket_hash: Buffer;
    port_id: HttpPortId;
    hostname: string;
    session_id: SessionId;
    org_id: OrgId;
    expires_at: Date;
  };
  http_cookies: {
    cookie_hash: Buffer;
    port_id: HttpPortId;
    hostname: string;
    session_id: SessionId;
    org_id: OrgId;
    created_at: Generated<Date>;
    expires_at: Date;
  };
}
