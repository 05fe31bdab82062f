/** The tables of VMs: their boots, memory, metrics, flushes and consoles. */
import type { ColumnType, Generated } from 'kysely';
import type { MemoryRef, VmReasonCode } from '../../protocol/types.ts';
import type {
  ApiKeyId,
  ExecId,
  FlushId,
  HostId,
  InstanceId,
  OrgId,
  SessionId,
  VmId,
} from '../../shared/ids.ts';
import type { TraceContext } from '../../shared/tracing.ts';

type Json<T> = ColumnType<T, string, string>;
type NullableJson<T> = ColumnType<T | null, string | null, string | null>;

export interface VmTables {
  vms: {
    id: VmId;
    instance_id: InstanceId;
    boot: number;
    epoch: number;
    host_id: HostId;
    desired: 'running' | 'suspended' | 'stopped';
    /** `control-plane/vms/model.ts` explains them. */
    state:
      | 'starting'
      | 'running'
      | 'restarting'
      | 'suspending'
      | 'suspended'
      | 'stopping'
      | 'stopped'
      | 'failed';
    force: Generated<boolean>;
    reboots: Generated<number>;
    /** Of its guest, since this boot began. */
    resets: Generated<number>;
    released: Generated<boolean>;
    reason_code: VmReasonCode | null;
    reason_message: string | null;
    reason_actor: string | null;
    ssh_address: string | null;
    /** Fingerprints; null until the guest's keys were first in force. */
    applied_keys: NullableJson<readonly string[]>;
    active_at: Date | null;
    /** Its guest may have run: only then the disk may have been written. */
    guest_ran: Generated<boolean>;
    started_at: Date | null;
    stopped_at: Date | null;
    deadline_at: Date | null;
    version: Generated<number>;
    suspended_at: Date | null;
    /** The head that it began from, or has committed last. */
    generation: Generated<number>;
    commit_id: string | null;
    restarted_at: Date | null;
    /** Written as text, because it may be `infinity`. */
    restart_after: ColumnType<never, string | undefined, string>;
    /** It is to continue on another host: by its memory, or from its disk. */
    move: Generated<'suspend' | 'stop' | null>;
    move_problem: Generated<string | null>;
    move_after: Generated<Date | null>;
    /** Of the last request for its state; null: there was none. */
    trace_context: NullableJson<TraceContext>;
  };
  memory_images: {
    key: string;
    instance_id: InstanceId;
    /** null: spent. */
    vm_id: VmId | null;
    ref: Json<MemoryRef>;
    created_at: Generated<Date>;
  };
  metric_samples: {
    instance_id: InstanceId;
    at: Date;
    seconds: number;
    minutes: number;
    means: readonly (number | null)[];
    mins: readonly (number | null)[];
    maxs: readonly (number | null)[];
  };
  flushes: {
    id: FlushId;
    instance_id: InstanceId;
    vm_id: VmId;
    requested_by: string;
    state: 'queued' | 'running' | 'done' | 'failed';
    finished_at: Date | null;
    receipt: NullableJson<unknown>;
    error: NullableJson<unknown>;
    trace_context: NullableJson<TraceContext>;
  };
  user_data: { instance_id: InstanceId; script: string; given: Generated<boolean> };
  console_tickets: {
    ticket_hash: Buffer;
    instance_id: InstanceId;
    org_id: OrgId;
    credential_kind: 'session' | 'key';
    credential_id: SessionId | ApiKeyId;
    /** SHA-256 of the key's secret that asked; null of a session. */
    secret_hash: Buffer | null;
    expires_at: Date;
    /** Null: for the console. */
    exec_id: ExecId | null;
  };
}
