/** The types of the tables. `schema.sql` is the actual schema. */
import type { ColumnType, Generated } from 'kysely';
import type { HostFacts } from '../../protocol/host-types.ts';
import type { HostKey, MapRef, SegmentRef } from '../../protocol/types.ts';
import type { EgressMode } from '../../shared/egress-policy.ts';
import type {
  ApiKeyId,
  HostId,
  InstanceId,
  InvitationId,
  MfaFactorId,
  OrgId,
  ServiceAccountId,
  SessionId,
  SshKeyId,
  UserId,
} from '../../shared/ids.ts';
import type { OwnQuotas } from '../../shared/quotas.ts';
import type { RestartPolicy } from '../../shared/restart-policy.ts';
import { ROLES, type Role } from '../../shared/roles.ts';
import type { AuditTables } from './audit-tables.ts';
import type { ControlPlaneTables } from './control-plane-tables.ts';
import type { DeliveryTables } from './delivery-tables.ts';
import type { EgressTables } from './egress-tables.ts';
import type { ExecTables } from './exec-tables.ts';
import type { HostTables } from './host-tables.ts';
import type { HttpTables } from './http-tables.ts';
import type { IdentityTables } from './identity-tables.ts';
import type { IngressTables } from './ingress-tables.ts';
import type { ReaderTables } from './reader-tables.ts';
import type { SecretTables } from './secret-tables.ts';
import type { UsageTables } from './usage-tables.ts';
import type { VmTables } from './vm-tables.ts';
import type { WebhookTables } from './webhook-tables.ts';

type Json<T> = ColumnType<T, string, string>;
type NullableJson<T> = ColumnType<T | null, string | null, string | null>;

export { ROLES, type Role };

/** What makes a generation. `request`: a caller; `auto`: an automatic flush; `stop`, `suspend`: the VM's last flush. */
export const GENERATION_TRIGGERS = [
  'request',
  'auto',
  'stop',
  'suspend',
  'import',
  'fork',
  'restore',
] as const;
export type GenerationTrigger = (typeof GENERATION_TRIGGERS)[number];

/** What a disk's content was taken from. */
export interface GenerationOrigin {
  readonly instance_id: InstanceId;
  readonly generation: number;
}
export interface ForkedFrom extends GenerationOrigin {
  /** What the parent had written and not flushed by then. */
  readonly dirty_bytes: number;
}

/** The data of a WebAuthn credential that verifies its assertions. */
export interface StoredCredential {
  /** base64url, as the browser names it. */
  readonly id: string;
  /** COSE key, base64url. */
  readonly public_key: string;
  readonly counter: number;
  readonly transports: readonly string[];
}

export interface Database
  extends AuditTables,
    ControlPlaneTables,
    DeliveryTables,
    EgressTables,
    ExecTables,
    HttpTables,
    IdentityTables,
    IngressTables,
    SecretTables,
    ReaderTables,
    UsageTables,
    VmTables,
    HostTables,
    WebhookTables {
  users: {
    id: UserId;
    email: string;
    email_key: string;
    name: string;
    password_hash: string | null;
    email_confirmed: Generated<boolean>;
    created_at: Generated<Date>;
  };
  organisations: {
    id: OrgId;
    name: string;
    billing_email: string;
    created_at: Generated<Date>;
    quotas: ColumnType<OwnQuotas, string | undefined, string>;
    /** Null: created before this column existed. */
    created_by: ColumnType<UserId | null, UserId | undefined, never>;
    operator: Generated<boolean>;
  };
  memberships: {
    org_id: OrgId;
    user_id: UserId;
    role: Role;
    created_at: Generated<Date>;
    by_groups: Generated<boolean>;
  };
  sessions: {
    id: SessionId;
    user_id: UserId;
    refresh_family: Buffer | null;
    refresh_hash: Buffer | null;
    ip: string;
    user_agent: string;
    created_at: Generated<Date>;
    last_seen_at: Generated<Date>;
    ends_at: Date;
  };
  session_tokens: { token_hash: Buffer; session_id: SessionId; expires_at: Date };
  replaced_refresh_tokens: { token_hash: Buffer; session_id: SessionId; replaced_at: Generated<Date> };
  sudo_grants: { token_hash: Buffer; session_id: SessionId; user_id: UserId; expires_at: Date };
  lockouts: {
    email_key: string;
    failures: Generated<number>;
    locks: Generated<number>;
    locked_until: Date | null;
    updated_at: Generated<Date>;
  };
  mail_tokens: {
    token_hash: Buffer;
    kind: 'password_reset' | 'confirm_email';
    user_id: UserId;
    email: string | null;
    expires_at: Date;
  };
  mfa_factors: {
    id: MfaFactorId;
    user_id: UserId;
    type: 'totp' | 'webauthn';
    name: string;
    secret: Buffer | null;
    credential: NullableJson<StoredCredential>;
    last_step: number | null;
    confirmed_at: Date | null;
    created_at: Generated<Date>;
    last_used_at: Date | null;
  };
  recovery_codes: { user_id: UserId; code_hash: Buffer };
  webauthn_challenges: {
    challenge: string;
    user_id: UserId | null;
    purpose: 'register' | 'login';
    expires_at: Date;
  };
  invitations: {
    id: InvitationId;
    org_id: OrgId;
    email: string;
    role: Role;
    token_hash: Buffer;
    invited_by: string;
    created_at: Generated<Date>;
    expires_at: Date;
  };
  service_accounts: {
    id: ServiceAccountId;
    org_id: OrgId;
    name: string;
    scope: string;
    created_by: string;
    created_at: Generated<Date>;
  };
  api_keys: {
    id: ApiKeyId;
    org_id: OrgId;
    user_id: UserId | null;
    service_account_id: ServiceAccountId | null;
    name: string;
    scope: string;
    token_hash: Buffer;
    prefix: string;
    last4: string;
    allowed_cidrs: Generated<string[]>;
    previous_hash: Buffer | null;
    previous_expires_at: Date | null;
    created_at: Generated<Date>;
    last_used_at: Date | null;
    expires_at: Date | null;
    expiry_told: Date | null;
    /** The API key that made it, also when that one is gone. */
    created_by_key: Generated<ApiKeyId | null>;
    /** The same while it exists, then the one that made that, and so on; null: there is none. */
    parent_key: Generated<ApiKeyId | null>;
  };
  idempotency_keys: {
    org_id: OrgId;
    principal: string;
    route: string;
    key: string;
    fingerprint: Buffer;
    status: number;
    response: Buffer;
    expires_at: Date;
  };
  ssh_keys: {
    id: SshKeyId;
    user_id: UserId;
    /** The only organisation in which it grants access; null: all of its owner's. */
    org_id: Generated<OrgId | null>;
    /** The API key that registered it, as for API keys. */
    parent_key: Generated<ApiKeyId | null>;
    name: string;
    type: string;
    fingerprint: string;
    public_key: string;
    created_at: Generated<Date>;
    last_used_at: Date | null;
  };
  object_stores: {
    only_one: Generated<boolean>;
    id: string;
    marked_at: Date | null;
  };
  hosts: {
    id: HostId;
    name: string;
    token_hash: Buffer;
    created_at: Generated<Date>;
    last_seen_at: Date | null;
    facts: NullableJson<HostFacts>;
    beat: Generated<number>;
    lease_ms: Generated<number | null>;
    lost_at: Generated<Date | null>;
    remote: Generated<boolean>;
    draining: Generated<boolean>;
    removed_at: Generated<Date | null>;
    cpus: Generated<number | null>;
    memory_mib: Generated<number | null>;
    protocol: Generated<number | null>;
    labels: ColumnType<Record<string, string>, string | undefined, string>;
    taints: Generated<string[]>;
    cordoned: Generated<boolean>;
    drain_vms: Generated<number | null>;
    join_hash: Generated<Buffer | null>;
    join_expires_at: Generated<Date | null>;
    next_token_hash: Generated<Buffer | null>;
    credential_since: Generated<Date>;
    rotate_requested: Generated<boolean>;
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
    event_sequence: Generated<number>;
    idle_timeout_seconds: number | null;
    wake_on_connect: boolean;
    restart: Generated<RestartPolicy>;
    auto_flush_seconds: number | null;
    keep_last: Generated<number>;
    keep_daily_days: Generated<number>;
    egress_mode: Generated<EgressMode>;
    egress_allow: Generated<string[]>;
    forked_from: NullableJson<ForkedFrom>;
    host_labels: ColumnType<Record<string, string>, string | undefined, string>;
    tolerations: Generated<string[]>;
    ssh_port: number;
    ssh_host: Generated<string>;
    host_keys: NullableJson<HostKey[]>;
    ssh_key_mode: Generated<'account' | 'explicit'>;
    deleting: Generated<boolean>;
    version: Generated<number>;
    created_at: Generated<Date>;
    updated_at: Generated<Date>;
  };
  instance_ssh_keys: { instance_id: InstanceId; ssh_key_id: SshKeyId };
  disks: {
    instance_id: InstanceId;
    size_bytes: number;
    image_version: string | null;
    generation: Generated<number>;
    /** Of the head; before the first generation a random one. */
    commit_id: Generated<string>;
    epoch: Generated<number>;
    durable_at: Date | null;
    stored_bytes: Generated<number>;
    dirty_bytes: Generated<number>;
    holds_more: Generated<boolean>;
    compacting_until: Date | null;
    boot_order: Generated<number[]>;
    nearly_full: Generated<boolean>;
    growth: 'done' | 'next_boot' | null;
  };
  deleted_instances: { instance_id: InstanceId };
  image_versions: {
    image_id: string;
    version: string;
    recipe: string;
    index_sha256: string;
    size_bytes: number;
    stored_bytes: number;
    current: Generated<boolean>;
    removed_at: Date | null;
    created_at: Generated<Date>;
  };
  generations: {
    instance_id: InstanceId;
    generation: number;
    commit_id: Generated<string>;
    epoch: number;
    created_at: Generated<Date>;
    bytes: number;
    consistency: 'filesystem' | 'crash' | 'offline';
    trigger: Generated<GenerationTrigger>;
    origin: NullableJson<GenerationOrigin>;
    dirty_bytes: number | null;
    segment_count: number | null;
    duration_ms: number | null;
    segments: Json<SegmentRef[]>;
    parent: number | null;
    map: NullableJson<MapRef>;
    name: string | null;
    pinned: Generated<boolean>;
    retained: Generated<boolean>;
  };
  data_keys: {
    instance_id: InstanceId;
    key_id: string;
    wrapped: Buffer;
    use: 'disk' | 'memory' | 'reading';
    used: Generated<boolean>;
    until_generation: Generated<number | null>;
    created_at: Generated<Date>;
  };
  segments: {
    key: string;
    size_bytes: number;
    created_at: Generated<Date>;
    unheld_at: Date | null;
  };
  segment_holders: { key: string; instance_id: InstanceId };
}
