/**
 * What the control plane and a host's agent say to each other (the ingress: `ingress-types.ts`), over HTTP with
 * the host's token, a unix socket on one machine. The agent always dials. It polls for its assignments,
 * carries them out, and reports what it observes; only the control plane writes the database.
 */
import type { FlushId, HostId, InstanceId, VmId } from '../lib/ids.ts';
import type { FlushFailureCode, VmReasonCode } from './reasons.ts';

export interface SegmentRef {
  readonly key: string;
  readonly size_bytes: number;
  /** Blocks that it holds. */
  readonly entries: number;
  /** The data key that it is encrypted with; null: it is not. Readers refuse it when it says otherwise. */
  readonly key_id: string | null;
}

/** A map of blocks in the place of segments. */
export interface MapRef {
  readonly key: string;
  readonly size_bytes: number;
  /** It says all of the chain up to it; else what its generation changed. */
  readonly full: boolean;
  readonly key_id: string | null;
}

/** A key that a disk's objects are encrypted with. Held in memory alone, and never logged. */
export interface DataKey {
  readonly key_id: string;
  /** 32 bytes, base64. */
  readonly key: string;
  /** New objects are encrypted with it; the others are of segments that the disk shares. */
  readonly own: boolean;
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

/** A disk's durable state: what its chain is made of up to the head. */
export interface DiskHead {
  readonly instance_id: InstanceId;
  readonly size_bytes: number;
  readonly image_version: string | null;
  readonly generation: number;
  /** Of this generation and content alone; random. Generation 0, the image, has one for each disk. */
  readonly commit_id: string;
  /** The newest placement. Commits of any other are refused. */
  readonly epoch: number;
  readonly durable_at: string | null;
  /** Oldest first: each overrides those before it. */
  readonly layers: readonly (SegmentRef | MapRef)[];
  /** For the host that has the instance's VM; for others none. */
  readonly keys: readonly DataKey[];
  /** New objects are to be encrypted. Without the own key nothing can be written then. */
  readonly encryption: boolean;
  /** Blocks in the order in which the last lazily started boot read them first; none known: empty. */
  readonly boot_order: readonly number[];
}

/** What a boot read first, for the next one to fetch ahead. Taken only from the newest placement. */
export interface BootOrderReport {
  readonly instance_id: InstanceId;
  readonly epoch: number;
  readonly blocks: readonly number[];
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

/** What a machine must have in common with the one whose memory it takes over. */
export interface MachineTraits {
  /** Version and package of QEMU. */
  readonly qemu: string;
  /** A digest of the virtual hardware: machine type, devices, cpus, memory. */
  readonly hardware: string;
  readonly image_version: string;
  /** The model of the host's CPU where guests see it, else empty. */
  readonly host_cpu: string;
}

/** The memory of a suspended VM, whole and durable in the object store (`disk-format/memory-format.ts`). */
export interface MemoryRef {
  /** Its objects are `<key>/<part>`. */
  readonly key: string;
  readonly parts: number;
  /** Of the stream that QEMU wrote, and of the objects. */
  readonly memory_bytes: number;
  readonly stored_bytes: number;
  /** What it is encrypted with; the salt is base64. */
  readonly key_id: string;
  readonly salt: string;
  /** The placement that wrote it, and the generation of the disk that goes with it: one point in time. */
  readonly epoch: number;
  readonly generation: number;
  /** The guest's file systems may be frozen in it. */
  readonly frozen: boolean;
  /** Lines of authorized_keys in force in it, the connections of all other keys ended; null: not known. */
  readonly authorized_keys: readonly string[] | null;
  readonly traits: MachineTraits;
}

/** One VM that this host is to look after. */
export interface Assignment {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly boot: number;
  readonly epoch: number;
  /** `deleted`: end the VM at once and remove everything of the instance from this host. */
  readonly desired: 'running' | 'suspended' | 'stopped' | 'failed' | 'deleted';
  /** Stop without the guest's part. */
  readonly force: boolean;
  /** Soft reboots asked for in this boot, in all. */
  readonly reboots: number;
  /** The last boot that ran its guest (this one, if it has) failed: what it wrote past the head may be on its host only. */
  readonly previous_failed: boolean;
  /** Since this epoch every placement was on this host: what its overlay holds beyond the head is the newest. */
  readonly own_since: number;
  /** This boot was suspended: the durable head is all that its guest has written. */
  readonly suspended: boolean;
  /** Memory to go on from, until the guest runs. The durable head is all that its guest had written. */
  readonly resume: MemoryRef | null;
  /** There is a script for the first boot that no durable disk has run. */
  readonly user_data: boolean;
  /** A flush that callers wait for and nobody began. */
  readonly flush_id: FlushId | null;
  /** The guest has not said its host key since the disk was made, forked or restored. */
  readonly host_key_new: boolean;
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
  /** null, or why users of their own or egress rules are not in force. Limits that cannot be set are in the agent's log. */
  readonly isolation_problem: string | null;
}
/** An image that this host has, by the hash of its root file system; `needed`: a disk here is about to be durable on it. */
export interface OfferedImage {
  readonly id: string;
  readonly version: string;
  readonly recipe: string;
  readonly needed: boolean;
}
export interface OfferRequest {
  readonly images: readonly OfferedImage[];
}
/**
 * In the order of what was offered. `wanted`: put it into the object store and register it; `removed`: nobody needs it
 * any more; `unneeded`: another build of the same recipe is what new disks are made over.
 */
export interface OfferResponse {
  readonly verdicts: readonly ('stored' | 'wanted' | 'removed' | 'unneeded')[];
}
/** All of it is in the object store. */
export interface ImageRegistration {
  readonly id: string;
  readonly version: string;
  readonly recipe: string;
  readonly index_sha256: string;
  readonly size_bytes: number;
  readonly stored_bytes: number;
  /** What this host makes new disks over. */
  readonly newest: boolean;
}
/** Without a version: what new disks are made over. */
export interface FindImageRequest {
  readonly id: string;
  readonly version: string | null;
}
export interface FoundImage {
  readonly version: string;
  readonly index_sha256: string;
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

/**
 * Said every few seconds. A lease counts from the sending of the renewal that was answered; past it the host pauses
 * every VM, so that they may run elsewhere.
 */
export interface LeaseRequest {
  /** Something on the host enforces a lease of this length from now on, even if the agent dies; null: nothing does. */
  readonly kept_ms: number | null;
}
export interface LeaseResponse {
  /** The lease that is to be kept; null: none, there is one host alone. */
  readonly lease_ms: number | null;
}

export interface Reason<Code extends string = VmReasonCode> {
  readonly code: Code;
  readonly message: string;
}

/** What the agent observed of one VM. Reports carry the epoch; one of another epoch is answered `fenced`. */
export type Observation =
  | {
      readonly kind: 'running';
      readonly reboots: number;
      readonly ssh_address: string;
      readonly host_keys: readonly HostKey[];
      /** Fingerprints of the keys that the guest lets in; nobody with another one is connected. */
      readonly applied_keys: readonly string[];
      /** Set when the disk was continued from the head although the last VM had written past it. */
      readonly recovered: Reason | null;
      /** The guest goes on from the memory of the assignment's `resume`. */
      readonly resumed?: boolean;
    }
  /** The guest stands still until a disk request that failed on its host can be served, or its agent is silent. */
  | { readonly kind: 'stalled'; readonly reason: Reason }
  | { readonly kind: 'resumed' }
  /** The guest was reset, by itself or by a restart. Said once for each reset, before the guest is said to run again. */
  | { readonly kind: 'rebooting' }
  | { readonly kind: 'powered_off' }
  | { readonly kind: 'flush_pending'; readonly reason: Reason }
  /** Memory and disk of one point in time are durable. The machine stands still, and may be ended. */
  | { readonly kind: 'suspended'; readonly memory: MemoryRef }
  /** The guest runs on, as if nothing had been asked for. */
  | { readonly kind: 'suspend_failed'; readonly reason: Reason }
  /** `recovered`: what it, or a VM before it, had written past the head is lost, and nobody was told. */
  | { readonly kind: 'stopped'; readonly recovered?: Reason }
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
  | { readonly flush_id: FlushId; readonly state: 'failed'; readonly error: Reason<FlushFailureCode> };

/** The first automatic flush in a row that failed. */
export interface FlushFailure {
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly error: Reason<FlushFailureCode>;
}

/** A new generation; `generation` is the head's plus one. The same commit said twice is accepted once. */
export interface CommitRequest {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly generation: number;
  /** Random (UUID): what the head is called once this is committed. */
  readonly commit_id: string;
  /** The `commit_id` of the head that it follows. Any other head refuses it. */
  readonly parent_id: string;
  readonly image_version: string;
  readonly segments: readonly SegmentRef[];
  readonly consistency: Consistency;
  /** For the event: what was dirty. */
  readonly dirty_bytes: number;
}
export type CommitResponse =
  | { readonly outcome: 'committed'; readonly durable_at: string }
  | { readonly outcome: 'fenced'; readonly why: string };

/** Which head an overlay was last known to equal, and the VM that has written it. */
export interface LineageRequest {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly generation: number;
  readonly commit_id: string;
}
export interface LineageResponse {
  /** The database knows of that head. If not, the overlay is ahead of it: the database has lost commits. */
  readonly known: boolean;
  /** The head now is one that this VM began from or has committed: its overlay holds all of it. */
  readonly continues: boolean;
}

/** `unwanted`, to `suspended` alone: the VM is to run on. */
export type ReportResponse =
  | { readonly outcome: 'accepted' }
  | { readonly outcome: 'fenced' }
  | { readonly outcome: 'unwanted' };

/** The guest lets in these keys (fingerprints), and connections of others have ended. */
export interface KeysReport {
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly applied_keys: readonly string[];
}

/** Keys (fingerprints) that let somebody into the guest since the last such report, as its sshd says. */
export interface LoginsReport {
  readonly vm_id: VmId;
  readonly epoch: number;
  readonly fingerprints: readonly string[];
}

export interface ObjectStoreResponse {
  /** What the mark in the object store says (object-store/store-mark.ts); null: the control plane has not written it yet. */
  readonly mark: string | null;
}
