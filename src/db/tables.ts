/** The tables as the code sees them; `schema.sql` beside it is what the database really has. */
import type { ColumnType, Generated } from 'kysely';
import type { HostFacts, HostKey, SegmentRef } from '../agent-api/types.ts';
import type {
  ApiKeyId,
  EventId,
  FlushId,
  HostId,
  InstanceId,
  OrgId,
  SessionId,
  SshKeyId,
  UserId,
  VmId,
} from '../lib/ids.ts';
import type { VmState } from '../vms/model.ts';

type Json<T> = ColumnType<T, string, string>;
type NullableJson<T> = ColumnType<T | null, string | null, string | null>;

export const ROLES = ['owner', 'admin', 'member', 'billing'] as const;
export type Role = (typeof ROLES)[number];

export interface Database {
  users: {
    id: UserId;
    email: string;
    email_key: string;
    name: string;
    password_hash: string;
    created_at: Generated<Date>;
  };
  organisations: { id: OrgId; name: string; billing_email: string; created_at: Generated<Date> };
  memberships: { org_id: OrgId; user_id: UserId; role: Role; created_at: Generated<Date> };
  sessions: {
    id: SessionId;
    user_id: UserId;
    token_hash: Buffer;
    ip: string;
    user_agent: string;
    created_at: Generated<Date>;
    last_seen_at: Generated<Date>;
    expires_at: Date;
  };
  api_keys: {
    id: ApiKeyId;
    org_id: OrgId;
    user_id: UserId;
    name: string;
    scope: string;
    token_hash: Buffer;
    prefix: string;
    last4: string;
    created_at: Generated<Date>;
    last_used_at: Date | null;
    expires_at: Date | null;
  };
  ssh_keys: {
    id: SshKeyId;
    user_id: UserId;
    name: string;
    type: string;
    fingerprint: string;
    public_key: string;
    created_at: Generated<Date>;
    last_used_at: Date | null;
  };
  hosts: {
    id: HostId;
    name: string;
    token_hash: Buffer;
    created_at: Generated<Date>;
    last_seen_at: Date | null;
    facts: NullableJson<HostFacts>;
  };
  instances: {
    id: InstanceId;
    org_id: OrgId;
    created_by: string;
    name: string;
    image: string;
    cpus: number;
    memory_mib: number;
    disk_gib: number;
    labels: Json<Record<string, string>>;
    idle_timeout_seconds: number | null;
    wake_on_connect: boolean;
    auto_flush_seconds: number | null;
    ssh_port: number;
    host_keys: NullableJson<HostKey[]>;
    ssh_key_mode: Generated<'account' | 'explicit'>;
    deleting: Generated<boolean>;
    version: Generated<number>;
    created_at: Generated<Date>;
    updated_at: Generated<Date>;
  };
  instance_ssh_keys: { instance_id: InstanceId; ssh_key_id: SshKeyId };
  resting_ports: { port: number; until: Date };
  disks: {
    instance_id: InstanceId;
    size_bytes: number;
    image_version: string | null;
    generation: Generated<number>;
    head_epoch: Generated<number>;
    epoch: Generated<number>;
    durable_at: Date | null;
    stored_bytes: Generated<number>;
    dirty_bytes: Generated<number>;
  };
  generations: {
    instance_id: InstanceId;
    generation: number;
    epoch: number;
    created_at: Generated<Date>;
    bytes: number;
    consistency: 'filesystem' | 'crash' | 'offline';
    segments: Json<SegmentRef[]>;
  };
  vms: {
    id: VmId;
    instance_id: InstanceId;
    boot: number;
    epoch: number;
    host_id: HostId;
    desired: 'running' | 'stopped';
    state: VmState;
    force: Generated<boolean>;
    reboots: Generated<number>;
    released: Generated<boolean>;
    reason_code: string | null;
    reason_message: string | null;
    reason_actor: string | null;
    ssh_address: string | null;
    started_at: Date | null;
    stopped_at: Date | null;
    deadline_at: Date | null;
    version: Generated<number>;
  };
  flushes: {
    id: FlushId;
    instance_id: InstanceId;
    vm_id: VmId;
    state: 'queued' | 'running' | 'done' | 'failed';
    requested_at: Generated<Date>;
    finished_at: Date | null;
    receipt: NullableJson<unknown>;
    error: NullableJson<unknown>;
  };
  events: {
    id: EventId;
    org_id: OrgId;
    instance_id: InstanceId | null;
    sequence: number | null;
    type: string;
    data: Json<unknown>;
    actor: string;
    created_at: Generated<Date>;
  };
}
