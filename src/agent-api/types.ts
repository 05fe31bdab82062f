/**
 * What the control plane and a host's agent say to each other (and the ingress, at the end), over HTTP with
 * the host's token, a unix socket on one machine. The agent always dials. It polls for its assignments,
 * carries them out, and reports what it observes; only the control plane writes the database.
 */
import type { FlushId, HostId, InstanceId, VmId } from '../lib/ids.ts';

export interface SegmentRef {
  readonly key: string;
  readonly size_bytes: number;
  /** Blocks that it holds. */
  readonly entries: number;
}

export interface HostKey {
  /** As in the key's line: `ssh-ed25519`. */
  readonly type: string;
  /** `SHA256:…` */
  readonly fingerprint: string;
  /** `<type> <base64>` without comment. */
  readonly public_key: string;
}

export type Consistency = 'filesystem' | 'crash' | 'offline';

/** A disk's durable state: the segments of all generations up to the head, oldest first. */
export interface DiskHead {
  readonly instance_id: InstanceId;
  readonly size_bytes: number;
  readonly image_version: string | null;
  readonly generation: number;
  /** The placement that committed this generation (0: none was). */
  readonly head_epoch: number;
  /** The newest placement. Commits of any other are refused. */
  readonly epoch: number;
  readonly durable_at: string | null;
  readonly segments: readonly SegmentRef[];
}

export interface MachineSpec {
  readonly image: string;
  readonly hostname: string;
  readonly cpus: number;
  readonly memory_mib: number;
  readonly disk_bytes: number;
  /** Stable for the instance; the VM's uid derives from it. */
  readonly ssh_port: number;
  readonly auto_flush_seconds: number | null;
}

/** One VM that this host is to look after. */
export interface Assignment {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly boot: number;
  readonly epoch: number;
  /** `deleted`: end the VM at once and remove everything of the instance from this host. */
  readonly desired: 'running' | 'stopped' | 'failed' | 'deleted';
  /** Stop without the guest's part. */
  readonly force: boolean;
  /** Soft reboots asked for in this boot, in all. */
  readonly reboots: number;
  /** The last boot that ran its guest failed: what it wrote past the head may be on its host only. */
  readonly previous_failed: boolean;
  /** Since this epoch every placement was on this host: what its overlay holds beyond the head is the newest. */
  readonly own_since: number;
  /** There is a script for the first boot that no durable disk has run. */
  readonly user_data: boolean;
  /** A flush that callers wait for and nobody began. */
  readonly flush_id: FlushId | null;
  readonly spec: MachineSpec;
  /** Lines of authorized_keys, sorted. */
  readonly authorized_keys: readonly string[];
}

export interface PollRequest {
  /** The `etag` of the answer that the agent acts on; the call returns when there is another, or after 20 s. */
  readonly seen: string | null;
}
export interface PollResponse {
  readonly etag: string;
  readonly assignments: readonly Assignment[];
}

/** What the agent says about itself at its start and every 5 s. */
export interface HostFacts {
  readonly accelerator: 'kvm' | 'tcg';
  readonly accelerator_reason: string;
  readonly cpus: number;
  readonly memory_mib: number;
  readonly images: readonly { readonly id: string; readonly version: string }[];
  /** null when the object store works, else what is wrong with it. */
  readonly object_store_problem: string | null;
  /** null, or why cgroup limits or egress rules are not in force. */
  readonly isolation_problem: string | null;
}
export interface Heartbeat {
  readonly facts: HostFacts;
  readonly disks: readonly DiskReport[];
}
export interface DiskReport {
  readonly instance_id: InstanceId;
  readonly dirty_bytes: number;
  /** The guest's root file system as it sees it; asked for about once a minute, else absent. */
  readonly root?: FileSystemUse;
}
export interface FileSystemUse {
  readonly used_bytes: number;
  /** Of what others than root may use. */
  readonly total_bytes: number;
}
export interface HeartbeatResponse {
  readonly host_id: HostId;
}

export interface Reason {
  readonly code: string;
  readonly message: string;
}

/** What the agent observed of one VM. Reports carry the epoch; one of another epoch is answered `fenced`. */
export type Observation =
  | {
      readonly kind: 'running';
      readonly reboots: number;
      readonly ssh_address: string;
      readonly host_keys: readonly HostKey[];
      /** Set when the disk was continued from the head although the last VM had written past it. */
      readonly recovered: Reason | null;
    }
  | { readonly kind: 'rebooting' }
  | { readonly kind: 'powered_off' }
  | { readonly kind: 'flush_pending'; readonly reason: Reason }
  | { readonly kind: 'stopped' }
  | { readonly kind: 'failed'; readonly reason: Reason }
  | { readonly kind: 'deleted' };

export interface Report {
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly observed: Observation;
}

/** Of a VM of this host. */
export interface UserDataRequest {
  readonly vm_id: VmId;
}
export interface UserDataResponse {
  readonly script: string | null;
}

export interface FlushReceipt {
  readonly generation: number;
  readonly durable_at: string | null;
  readonly dirty_bytes: number;
  readonly uploaded_bytes: number;
  readonly segments: number;
  readonly duration_ms: number;
  readonly consistency: Consistency;
}

export type FlushReport =
  | { readonly flush_id: FlushId; readonly state: 'running' }
  | { readonly flush_id: FlushId; readonly state: 'done'; readonly receipt: FlushReceipt }
  | { readonly flush_id: FlushId; readonly state: 'failed'; readonly error: Reason };

/** The first automatic flush in a row that failed. */
export interface FlushFailure {
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly error: Reason;
}

/** A new generation; `generation` is the head's plus one. The same commit said twice is accepted once. */
export interface CommitRequest {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly generation: number;
  readonly image_version: string;
  readonly segments: readonly SegmentRef[];
  readonly consistency: Consistency;
  /** For the event: what was dirty. */
  readonly dirty_bytes: number;
}
export type CommitResponse =
  | { readonly outcome: 'committed'; readonly durable_at: string }
  | { readonly outcome: 'fenced'; readonly why: string };

export type ReportResponse = { readonly outcome: 'accepted' } | { readonly outcome: 'fenced' };

/** Where the ingress sends the connections of one instance's port. */
export interface IngressRoute {
  readonly instance_id: InstanceId;
  readonly port: number;
  /** `host:port` of the VM's sshd; null while no VM runs. */
  readonly target: string | null;
}
export interface RoutesRequest {
  readonly seen: string | null;
  /** Ports that could not be opened, and why. */
  readonly blocked: readonly { readonly port: number; readonly problem: string }[];
}
export interface RoutesResponse {
  readonly etag: string;
  readonly routes: readonly IngressRoute[];
}
