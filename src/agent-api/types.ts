/**
 * What the control plane and a host's agent say to each other (the ingress: `ingress-types.ts`), over HTTP with
 * the host's token, a unix socket on one machine. The agent always dials. It polls for its assignments,
 * carries them out, and reports what it observes; only the control plane writes the database. `routes.ts` has the calls.
 */
import { Type } from 'typebox';
import { FLUSH_FAILURES, VM_REASONS } from './reasons.ts';
import {
  Bytes,
  Count,
  closed,
  Etag,
  Fingerprint,
  FlushId,
  ImageId,
  InstanceId,
  KEYS_MAX,
  KeyId,
  listOf,
  Milliseconds,
  matching,
  named,
  nullable,
  type Of,
  oneOf,
  Port,
  Sha256,
  Text,
  Time,
  Uuid,
  VmId,
  whole,
} from './schemas.ts';

const DISK = 'disks/inst_[0-9a-hjkmnp-tv-z]{26}';
/** A disk of 1 TiB, flushed whole without anything to compress, is 177,000 segments. */
const SEGMENTS_MAX = 2 ** 18;

export const SegmentRef = named('SegmentRef', {
  key: matching(`^${DISK}/seg/[0-9]{1,16}/[0-9]{1,16}-[0-9a-f]{8}-[0-9]{1,10}$`, 96),
  size_bytes: whole(1, 2 ** 25),
  /** Blocks that it holds. */
  entries: whole(0, 16_384),
  /** The data key that it is encrypted with; null: it is not. Readers refuse it when it says otherwise. */
  key_id: nullable(KeyId),
});
export type SegmentRef = Of<typeof SegmentRef>;

/** A map of blocks in the place of segments. */
export const MapRef = named('MapRef', {
  key: matching(`^${DISK}/map/[0-9]{1,16}-[0-9a-f]{8}$`, 96),
  size_bytes: Bytes,
  /** It says all of the chain up to it; else what its generation changed. */
  full: Type.Boolean(),
  key_id: nullable(KeyId),
});
export type MapRef = Of<typeof MapRef>;

/** A key that a disk's objects are encrypted with. Held in memory alone, and never logged. */
export const DataKey = named('DataKey', {
  key_id: KeyId,
  /** 32 bytes, base64. */
  key: matching('^[A-Za-z0-9+/]{43}=$', 44),
  /** What new objects of the disk, and memory, are encrypted with; the others are of what there is. */
  use: oneOf(['disk', 'memory', 'reading']),
});
export type DataKey = Of<typeof DataKey>;

export const HostKey = named('HostKey', {
  /** As in the key's line: `ssh-ed25519`. */
  type: matching('^[a-z0-9@.-]+$', 64),
  fingerprint: Fingerprint,
  /** `<type> <base64>` without comment. */
  public_key: matching('^[a-z0-9@.-]+ [A-Za-z0-9+/=]+$', 1_024),
});
export type HostKey = Of<typeof HostKey>;

export const Consistency = oneOf(['filesystem', 'crash', 'offline']);
export type Consistency = Of<typeof Consistency>;

/** A disk's durable state: what its chain is made of up to the head. */
export const DiskHead = named('DiskHead', {
  instance_id: InstanceId,
  size_bytes: Bytes,
  image_version: nullable(Sha256),
  generation: Count,
  /** Of this generation and content alone; random. Generation 0, the image, has one for each disk. */
  commit_id: Uuid,
  /** The newest placement. Commits of any other are refused. */
  epoch: Count,
  durable_at: nullable(Time),
  /** Oldest first: each overrides those before it. */
  layers: listOf(Type.Union([SegmentRef, MapRef]), 2 ** 22),
  /** Of a VM that may write; else none. */
  keys: listOf(DataKey, KEYS_MAX),
  /** New objects are to be encrypted. Without the key to write with nothing can be written then. */
  encryption: Type.Boolean(),
  /** Blocks in the order in which the last lazily started boot read them first; none known: empty. */
  boot_order: listOf(whole(0, 2 ** 31 - 1), 4_096),
});
export type DiskHead = Of<typeof DiskHead>;
export const HeadRequest = named('HeadRequest', { instance_id: InstanceId });
/** `elsewhere`: there is such an instance, and its newest VM is not this host's. `gone`: there is none. */
export const HeadResponse = Type.Union([
  closed({ outcome: Type.Literal('head'), head: DiskHead }),
  closed({ outcome: oneOf(['elsewhere', 'gone']) }),
]);
export type HeadResponse = Of<typeof HeadResponse>;

/** Asked as each flush begins: a fork takes what its parent wrote with, and the parent writes with another key from then on. */
export const DataKeysRequest = named('DataKeysRequest', {
  instance_id: InstanceId,
  vm_id: VmId,
  epoch: Count,
});
export type DataKeysRequest = Of<typeof DataKeysRequest>;
export const DataKeysResponse = Type.Union([
  closed({
    outcome: Type.Literal('keys'),
    keys: listOf(DataKey, KEYS_MAX),
    encryption: Type.Boolean(),
  }),
  closed({ outcome: Type.Literal('fenced') }),
]);
export type DataKeysResponse = Of<typeof DataKeysResponse>;

/** What a boot read first, for the next one to fetch ahead. Taken only from the newest placement. */
export const BootOrderReport = named('BootOrderReport', {
  instance_id: InstanceId,
  epoch: Count,
  blocks: listOf(whole(0, 2 ** 31 - 1), 4_096),
});
export type BootOrderReport = Of<typeof BootOrderReport>;

const MachineSpec = named('MachineSpec', {
  image: ImageId,
  hostname: matching('^[a-z0-9-]+$', 63),
  cpus: whole(1, 4_096),
  memory_mib: whole(1, 2 ** 26),
  disk_bytes: Bytes,
  /** Stable for the instance; the VM's uid derives from it. */
  ssh_port: Port,
  auto_flush_seconds: nullable(whole(0, 2 ** 31 - 1)),
});

/** What a machine must have in common with the one whose memory it takes over. */
export const MachineTraits = named('MachineTraits', {
  /** Version and package of QEMU. */
  qemu: Text,
  /** A digest of the virtual hardware: machine type, devices, cpus, memory. */
  hardware: Text,
  image_version: Sha256,
  /** The model of the host's CPU where guests see it, else empty. */
  host_cpu: Text,
});
export type MachineTraits = Of<typeof MachineTraits>;

/** Lines of authorized_keys. */
const KeyLines = listOf(matching('^[a-z0-9@.-]+ [A-Za-z0-9+/=]+$', 16_384), KEYS_MAX);

/** The memory of a suspended VM, whole and durable in the object store (`disk-format/memory-format.ts`). */
export const MemoryRef = named('MemoryRef', {
  /** Its objects are `<key>/<part>`. */
  key: matching(`^${DISK}/mem/[0-9]{1,16}-[0-9a-f]{8}$`, 96),
  parts: whole(1, 2 ** 24),
  /** Of the stream that QEMU wrote, and of the objects. */
  memory_bytes: Bytes,
  stored_bytes: Bytes,
  /** What it is encrypted with; the salt is 32 bytes, base64. */
  key_id: KeyId,
  salt: matching('^[A-Za-z0-9+/]{43}=$', 44),
  /** The placement that wrote it, and the generation of the disk that goes with it: one point in time. */
  epoch: Count,
  generation: Count,
  /** The guest's file systems may be frozen in it. */
  frozen: Type.Boolean(),
  /** Lines of authorized_keys in force in it, the connections of all other keys ended; null: not known. */
  authorized_keys: nullable(KeyLines),
  traits: MachineTraits,
});
export type MemoryRef = Of<typeof MemoryRef>;

/** One VM that this host is to look after. */
export const Assignment = named('Assignment', {
  instance_id: InstanceId,
  vm_id: VmId,
  boot: Count,
  epoch: Count,
  /** `deleted`: end the VM at once and remove everything of the instance from this host. */
  desired: oneOf(['running', 'suspended', 'stopped', 'failed', 'deleted']),
  /** Stop without the guest's part. */
  force: Type.Boolean(),
  /** Soft reboots asked for in this boot, in all. */
  reboots: Count,
  /** The last boot that ran its guest (this one, if it has) failed: what it wrote past the head may be on its host only. */
  previous_failed: Type.Boolean(),
  /** Since this epoch every placement was on this host: what its overlay holds beyond the head is the newest. */
  own_since: Count,
  /** This boot was suspended: the durable head is all that its guest has written. */
  suspended: Type.Boolean(),
  /** Memory to go on from, until the guest runs. The durable head is all that its guest had written. */
  resume: nullable(MemoryRef),
  /** There is a script for the first boot that no durable disk has run. */
  user_data: Type.Boolean(),
  /** A flush that callers wait for and nobody began. */
  flush_id: nullable(FlushId),
  /** The guest has not said its host key since the disk was made, forked or restored. */
  host_key_new: Type.Boolean(),
  spec: MachineSpec,
  /** Sorted. */
  authorized_keys: KeyLines,
});
export type Assignment = Of<typeof Assignment>;

/** `seen`: the `etag` of the answer that the agent acts on; the call returns when there is another, or after 20 s. */
export const PollRequest = named('PollRequest', { seen: nullable(Etag) });
export type PollRequest = Of<typeof PollRequest>;
export const PollResponse = named('PollResponse', { etag: Etag, assignments: listOf(Assignment, 2 ** 20) });
export type PollResponse = Of<typeof PollResponse>;

/** A lease counts from the sending of the renewal that was answered; past it the host pauses every VM. Said every few seconds. */
export const LeaseRequest = named('LeaseRequest', {
  /** Something on the host enforces a lease of this length from now on, even if the agent dies; null: nothing does. */
  kept_ms: nullable(whole(1, 86_400_000)),
});
export type LeaseRequest = Of<typeof LeaseRequest>;
/** The lease that is to be kept; null: none, there is one host alone. */
export const LeaseResponse = named('LeaseResponse', { lease_ms: nullable(whole(1, 86_400_000)) });
export type LeaseResponse = Of<typeof LeaseResponse>;

export const VmReason = named('VmReason', { code: oneOf(VM_REASONS), message: Text });
export const FlushError = named('FlushError', {
  code: oneOf([...VM_REASONS, ...FLUSH_FAILURES]),
  message: Text,
});
export interface Reason<Code extends string = Of<typeof VmReason>['code']> {
  readonly code: Code;
  readonly message: string;
}

const seen = <const K extends string>(kind: K) => closed({ kind: Type.Literal(kind) });
const seenWhy = <const K extends string>(kind: K) => closed({ kind: Type.Literal(kind), reason: VmReason });

/** What the agent observed of one VM. Reports carry the epoch; one of another epoch is answered `fenced`. */
export const Observation = Type.Union([
  closed({
    kind: Type.Literal('running'),
    reboots: Count,
    /** Of its sshd on the host's loopback. */
    ssh_address: matching('^127\\.0\\.0\\.1:[0-9]{1,5}$', 15),
    host_keys: listOf(HostKey, 8),
    /** Fingerprints of the keys that the guest lets in; nobody with another one is connected. */
    applied_keys: listOf(Fingerprint, KEYS_MAX),
    /** Set when the disk was continued from the head although the last VM had written past it. */
    recovered: nullable(VmReason),
    /** The guest goes on from the memory of the assignment's `resume`. */
    resumed: Type.Optional(Type.Boolean()),
  }),
  /** The guest stands still until a disk request that failed on its host can be served, or its agent is silent. */
  seenWhy('stalled'),
  seen('resumed'),
  /** The guest was reset, by itself or by a restart. Said once for each reset, before the guest is said to run again. */
  seen('rebooting'),
  seen('powered_off'),
  seenWhy('flush_pending'),
  /** Memory and disk of one point in time are durable. The machine stands still, and may be ended. */
  closed({ kind: Type.Literal('suspended'), memory: MemoryRef }),
  /** The guest runs on, as if nothing had been asked for. */
  seenWhy('suspend_failed'),
  /** `recovered`: what it, or a VM before it, had written past the head is lost, and nobody was told. */
  closed({ kind: Type.Literal('stopped'), recovered: Type.Optional(VmReason) }),
  seenWhy('failed'),
  seen('deleted'),
]);
export type Observation = Of<typeof Observation>;

export const Report = named('Report', { vm_id: VmId, epoch: Count, observed: Observation });
export type Report = Of<typeof Report>;
/** `unwanted`, to `suspended` alone: the VM is to run on. */
export const ReportResponse = named('ReportResponse', {
  outcome: oneOf(['accepted', 'fenced', 'unwanted']),
});
export type ReportResponse = Of<typeof ReportResponse>;

/** Of a VM of this host. */
export const UserDataRequest = named('UserDataRequest', { vm_id: VmId });
export type UserDataRequest = Of<typeof UserDataRequest>;
export const UserDataResponse = named('UserDataResponse', {
  script: nullable(Type.String({ maxLength: 2 ** 20 })),
});
export type UserDataResponse = Of<typeof UserDataResponse>;

export const FlushReceipt = named('FlushReceipt', {
  generation: Count,
  durable_at: nullable(Time),
  dirty_bytes: Bytes,
  uploaded_bytes: Bytes,
  segments: whole(0, SEGMENTS_MAX),
  duration_ms: Milliseconds,
  consistency: Consistency,
});
export type FlushReceipt = Of<typeof FlushReceipt>;

export const FlushReport = Type.Union([
  closed({ flush_id: FlushId, state: Type.Literal('running') }),
  closed({ flush_id: FlushId, state: Type.Literal('done'), receipt: FlushReceipt }),
  closed({ flush_id: FlushId, state: Type.Literal('failed'), error: FlushError }),
]);
export type FlushReport = Of<typeof FlushReport>;

/** The first automatic flush in a row that failed. */
export const FlushFailure = named('FlushFailure', { vm_id: VmId, epoch: Count, error: FlushError });
export type FlushFailure = Of<typeof FlushFailure>;

/** A new generation; `generation` is the head's plus one. The same commit said twice is accepted once. */
export const CommitRequest = named('CommitRequest', {
  instance_id: InstanceId,
  vm_id: VmId,
  epoch: Count,
  generation: Count,
  /** Random: what the head is called once this is committed. */
  commit_id: Uuid,
  /** The `commit_id` of the head that it follows. Any other head refuses it. */
  parent_id: Uuid,
  image_version: Sha256,
  /** Of this disk, epoch and generation. */
  segments: listOf(SegmentRef, SEGMENTS_MAX),
  consistency: Consistency,
  /** For the event: what was dirty. */
  dirty_bytes: Bytes,
});
export type CommitRequest = Of<typeof CommitRequest>;
export const CommitResponse = Type.Union([
  closed({ outcome: Type.Literal('committed'), durable_at: Time }),
  closed({ outcome: Type.Literal('fenced'), why: Text }),
]);
export type CommitResponse = Of<typeof CommitResponse>;

/** Which head an overlay was last known to equal, and the VM that has written it. */
export const LineageRequest = named('LineageRequest', {
  instance_id: InstanceId,
  vm_id: VmId,
  generation: Count,
  commit_id: Uuid,
});
export type LineageRequest = Of<typeof LineageRequest>;
export const LineageResponse = named('LineageResponse', {
  /** The database knows of that head. If not, the overlay is ahead of it: the database has lost commits. */
  known: Type.Boolean(),
  /** The head now is one that this VM began from or has committed: its overlay holds all of it. */
  continues: Type.Boolean(),
});
export type LineageResponse = Of<typeof LineageResponse>;

/** The guest lets in these keys (fingerprints), and connections of others have ended. */
export const KeysReport = named('KeysReport', {
  vm_id: VmId,
  epoch: Count,
  applied_keys: listOf(Fingerprint, KEYS_MAX),
});
export type KeysReport = Of<typeof KeysReport>;

/** Keys (fingerprints) that let somebody into the guest since the last such report, as its sshd says. */
export const LoginsReport = named('LoginsReport', {
  vm_id: VmId,
  epoch: Count,
  fingerprints: listOf(Fingerprint, KEYS_MAX),
});
export type LoginsReport = Of<typeof LoginsReport>;

/** What the mark in the object store says (object-store/store-mark.ts); null: the control plane has not written it yet. */
export const ObjectStoreResponse = named('ObjectStoreResponse', {
  mark: nullable(matching('^[\\x21-\\x7e]+$', 200)),
});
export type ObjectStoreResponse = Of<typeof ObjectStoreResponse>;
