/**
 * Defines the messages between control plane and agent about VMs and disks. The agent opens every connection: it polls
 * for its assignments, carries them out, and reports what it observes. Only the control plane writes the database.
 * `routes.ts` lists the calls.
 */
import { Type } from 'typebox';
import { Egress, SECRETS_MAX, SecretForHost, SecretsAuthority } from './host-types.ts';
import {
  Bytes,
  Count,
  closed,
  Etag,
  Fingerprint,
  FlushId,
  GuestSshAddress,
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
  TraceContext,
  Uuid,
  VmId,
  whole,
} from './schemas.ts';

/** The codes of `vm.reason` and of failed flushes. `docs/errors.md` explains each. A published code keeps its meaning. */
const VM_REASONS = [
  'start_requested',
  'stop_requested',
  'restart_requested',
  'suspend_requested',
  'ready',
  'stopped',
  'suspended',
  'resumed',
  'guest_poweroff',
  'guest_reboot',
  'woken',
  'restart_on_failure',
  'idle',
  'host_drain',
  'flush_pending',
  'recovered',
  'cold_boot',
  'suspend_failed',
  'resume_failed',
  'vm_died',
  'guest_panicked',
  'boot_timeout',
  'starting_timeout',
  'restarting_timeout',
  'suspending_timeout',
  'start_failed',
  'disk_full',
  'disk_error',
  'guest_agent_silent',
  'ssh_unavailable',
  'network_unavailable',
  'image_missing',
  'segment_corrupt',
  'object_store_unavailable',
  'control_plane_away',
  'host_lost',
  'fenced',
] as const;
export type VmReasonCode = (typeof VM_REASONS)[number];

/** In addition to the codes above for a problem of the host, its object store or the disk. */
export const FLUSH_FAILURES = ['flush_failed', 'interrupted', 'vm_gone'] as const;
export type FlushFailureCode = VmReasonCode | (typeof FLUSH_FAILURES)[number];

const DISK = 'disks/inst_[0-9a-hjkmnp-tv-z]{26}';
/** A whole flush of an incompressible 1 TiB disk has 177,000 segments. */
const SEGMENTS_MAX = 2 ** 18;

export const SegmentRef = named('SegmentRef', {
  key: matching(`^${DISK}/seg/[0-9]{1,16}/[0-9]{1,16}-[0-9a-f]{8}-[0-9]{1,10}$`, 96),
  size_bytes: whole(1, 2 ** 25),
  /** Blocks that it holds. */
  entries: whole(0, 16_384),
  /** The data key that encrypts it; null: none. Readers refuse an object that contradicts this. */
  key_id: nullable(KeyId),
});
export type SegmentRef = Of<typeof SegmentRef>;

/** A map of blocks that replaces segments. */
export const MapRef = named('MapRef', {
  key: matching(`^${DISK}/map/[0-9]{1,16}-[0-9a-f]{8}$`, 96),
  size_bytes: Bytes,
  /** It covers the whole chain up to its generation; else only that generation's changes. */
  full: Type.Boolean(),
  key_id: nullable(KeyId),
});
export type MapRef = Of<typeof MapRef>;

/** A key that encrypts objects. Only ever in memory, and never logged. */
export const DataKey = named('DataKey', {
  key_id: KeyId,
  /** 32 bytes, base64. */
  key: matching('^[A-Za-z0-9+/]{43}=$', 44),
  /** `disk` and `memory` encrypt new objects; `reading` keys only decrypt. */
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

/** A disk's durable state: the layers of its head. */
export const DiskHead = named('DiskHead', {
  instance_id: InstanceId,
  size_bytes: Bytes,
  image_version: nullable(Sha256),
  generation: Count,
  /** Random, unique to this generation and content. Generation 0 (the image) has one for each disk. */
  commit_id: Uuid,
  /** Of the newest placement. Commits of any other are refused. */
  epoch: Count,
  durable_at: nullable(Time),
  /** Oldest first: each overrides those before it. */
  layers: listOf(Type.Union([SegmentRef, MapRef]), 2 ** 22),
  /** Empty when the VM may not write. */
  keys: listOf(DataKey, KEYS_MAX),
  /** New objects must be encrypted. */
  encryption: Type.Boolean(),
  /** Blocks in the order in which the last lazy boot first read them; empty when unknown. */
  boot_order: listOf(whole(0, 2 ** 31 - 1), 4_096),
});
export type DiskHead = Of<typeof DiskHead>;
export const HeadRequest = named('HeadRequest', { instance_id: InstanceId });
/**
 * `elsewhere`: the instance's newest VM is not this host's. `deleted`: the instance existed, and was deleted. `unknown`: this
 * database knows nothing of it, and may be an older one or another installation's: nothing may be removed because of it.
 */
export const HeadResponse = Type.Union([
  closed({ outcome: Type.Literal('head'), head: DiskHead }),
  closed({ outcome: oneOf(['elsewhere', 'deleted', 'unknown']) }),
]);
export type HeadResponse = Of<typeof HeadResponse>;

/** Requested at the start of each flush, because a fork replaces its parent's key for writing. */
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

/** The blocks that a boot read first, for the next boot to prefetch. Accepted only from the newest placement. */
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
  /** Of no other instance on this host, and fixed there: user, TAP device and own address derive from it. */
  slot: Port,
  auto_flush_seconds: nullable(whole(0, 2 ** 31 - 1)),
});

/** A VM can resume a memory image only on a machine that is equal in these. */
export const MachineTraits = named('MachineTraits', {
  /** Version and package of QEMU. */
  qemu: Text,
  /** A digest of the virtual hardware: machine type, devices, cpus, memory. */
  hardware: Text,
  image_version: Sha256,
  /** The host's CPU model if guests see it, else empty. */
  host_cpu: Text,
});
export type MachineTraits = Of<typeof MachineTraits>;

const KEY_LINE = '[a-z0-9@.-]+ [A-Za-z0-9+/=]+';
/** Lines of authorized_keys. */
const KeyLines = listOf(matching(`^${KEY_LINE}$`, 16_384), KEYS_MAX);
/** As a guest has them: with the environment of their sessions, which names placeholders of secrets. */
const GivenKeyLines = listOf(
  matching(`^(environment="[A-Z0-9_]+=[A-Za-z0-9/._-]+"[, ])*${KEY_LINE}$`, 32_768),
  KEYS_MAX,
);

/** A suspended VM's memory, durable in the object store (`disk-format/memory-format.ts`). */
export const MemoryRef = named('MemoryRef', {
  /** Its objects are `<key>/<part>`. */
  key: matching(`^${DISK}/mem/[0-9]{1,16}-[0-9a-f]{8}$`, 96),
  parts: whole(1, 2 ** 24),
  /** Of the stream that QEMU wrote, and of the objects. */
  memory_bytes: Bytes,
  stored_bytes: Bytes,
  /** The key that encrypts it; the salt is 32 bytes, base64. */
  key_id: KeyId,
  salt: matching('^[A-Za-z0-9+/]{43}=$', 44),
  /** The placement that wrote it, and the disk's generation of the same point in time. */
  epoch: Count,
  generation: Count,
  /** Whether the guest's file systems may be frozen in it. */
  frozen: Type.Boolean(),
  /** The authorized_keys in force in it, with the connections of other keys ended; null when unknown. */
  authorized_keys: nullable(GivenKeyLines),
  traits: MachineTraits,
});
export type MemoryRef = Of<typeof MemoryRef>;

/** A VM that this host must run, stop or remove. */
export const Assignment = named('Assignment', {
  instance_id: InstanceId,
  vm_id: VmId,
  boot: Count,
  epoch: Count,
  /** `deleted`: end the VM at once and remove everything of the instance from this host. */
  desired: oneOf(['running', 'suspended', 'stopped', 'failed', 'deleted']),
  /** Stop without a guest shutdown. */
  force: Type.Boolean(),
  /** The number of soft reboots requested in this boot. */
  reboots: Count,
  /** The guest of this boot may have run: a host that knows nothing of it has lost it, and must not begin it again. */
  guest_ran: Type.Boolean(),
  /** The last boot that ran its guest (maybe this one) failed: only its host may have its writes past the head. */
  previous_failed: Type.Boolean(),
  /** Since this epoch every boot whose guest may have run was on this host, so writes in its overlay past the head are the newest. */
  own_since: Count,
  /** Of the newest boot on this host whose guest may have run (maybe this one): what an overlay of an earlier placement lacks is lost. 0: none. */
  last_ran_epoch: Count,
  /** This boot was suspended, so the durable head has all its writes. */
  suspended: Type.Boolean(),
  /** The memory to resume from, until the guest is reported as running. Unless it is consumed, the durable head has all its writes. */
  resume: nullable(MemoryRef),
  /** There is a user_data script that no durable disk has run. */
  user_data: Type.Boolean(),
  /** A requested flush to run. */
  flush_id: nullable(FlushId),
  /** The disk was increased to `spec.disk_bytes`, and the guest's root file system is not known to have grown. */
  disk_grows: Type.Boolean(),
  /** The guest's host key is unknown since the disk was created, forked or restored. */
  host_key_new: Type.Boolean(),
  spec: MachineSpec,
  /** Enforced from before the guest runs. */
  egress: Egress,
  /** Those with a value, sorted by name, and the authority for their hosts. */
  secrets: Type.Optional(listOf(SecretForHost, SECRETS_MAX)),
  secrets_authority: Type.Optional(SecretsAuthority),
  /** Sorted. */
  authorized_keys: KeyLines,
  /** Of the wanted state, and of the flush. */
  trace_context: Type.Optional(TraceContext),
  flush_trace_context: Type.Optional(TraceContext),
});
export type Assignment = Of<typeof Assignment>;

/** `seen`: the `etag` of the agent's present assignments. The call returns when they change, or after 20 s. */
export const PollRequest = named('PollRequest', { seen: nullable(Etag) });
export type PollRequest = Of<typeof PollRequest>;
export const PollResponse = named('PollResponse', {
  etag: Etag,
  assignments: listOf(Assignment, 2 ** 20),
});
export type PollResponse = Of<typeof PollResponse>;

/** The lease of a host that has none, as the only one, from when its credential is refused: 40 s, as BERTH_HOST_LEASE_SECONDS without a setting. */
export const DEFAULT_LEASE_MS = 40_000;

/** Sent every few seconds. A lease counts from the sending of its renewal; when it expires the host pauses every VM. */
export const LeaseRequest = named('LeaseRequest', {
  /** The lease that the host now enforces, even if the agent dies; null: none. */
  kept_ms: nullable(whole(1, 86_400_000)),
});
export type LeaseRequest = Of<typeof LeaseRequest>;
/** The lease that the host must enforce; null: none, because it is the only host. */
export const LeaseResponse = named('LeaseResponse', { lease_ms: nullable(whole(1, 86_400_000)) });
export type LeaseResponse = Of<typeof LeaseResponse>;

export const VmReason = named('VmReason', { code: oneOf(VM_REASONS), message: Text });
const FlushError = named('FlushError', {
  code: oneOf([...VM_REASONS, ...FLUSH_FAILURES]),
  message: Text,
});
export interface Reason<Code extends string = Of<typeof VmReason>['code']> {
  readonly code: Code;
  readonly message: string;
}

const seen = <const K extends string>(kind: K) => closed({ kind: Type.Literal(kind) });
const seenWhy = <const K extends string>(kind: K) => closed({ kind: Type.Literal(kind), reason: VmReason });

/** What the agent observed of one VM. A report of another epoch gets `fenced`. */
export const Observation = Type.Union([
  closed({
    kind: Type.Literal('running'),
    reboots: Count,
    ssh_address: GuestSshAddress,
    host_keys: listOf(HostKey, 8),
    /** Fingerprints of the keys that the guest accepts. Connections with other keys have ended. */
    applied_keys: listOf(Fingerprint, KEYS_MAX),
    /** Set when the VM continued from the head although the last VM had written past it. */
    recovered: nullable(VmReason),
    /** The guest was resumed from the assignment's `resume`. */
    resumed: Type.Optional(Type.Boolean()),
    /** Why nobody can log in although the guest's agent answers. `resumed` follows once somebody can. */
    access_problem: Type.Optional(VmReason),
  }),
  /** The guest waits for a disk request that failed on its host, its agent is silent, or nobody can log in. */
  seenWhy('stalled'),
  seen('resumed'),
  /** The guest was reset, by itself or by a restart. Reported once for each reset, before `running`. */
  seen('rebooting'),
  seen('powered_off'),
  seenWhy('flush_pending'),
  /** Memory and disk of one point in time are durable. QEMU is paused, and may be ended. */
  closed({ kind: Type.Literal('suspended'), memory: MemoryRef }),
  /** The guest continues to run. */
  seenWhy('suspend_failed'),
  /** A start from saved memory: no guest of this boot has run, and the memory can still be used. */
  seenWhy('resume_failed'),
  /** The running guest's root file system has the size that the assignment's `disk_grows` asked for. */
  closed({ kind: Type.Literal('disk_grown'), disk_bytes: Bytes }),
  /**
   * `commit_id`: the head that has the last write of the guest; null: none has it, and `recovered` says so. `recovered`: unsaved
   * writes of this or an earlier VM are lost, and this is the first report of it.
   */
  closed({
    kind: Type.Literal('stopped'),
    commit_id: nullable(Uuid),
    recovered: Type.Optional(VmReason),
  }),
  /** `guest_ran`: the guest of this boot may have run. */
  closed({ kind: Type.Literal('failed'), reason: VmReason, guest_ran: Type.Boolean() }),
  seen('deleted'),
]);
export type Observation = Of<typeof Observation>;

export const Report = named('Report', { vm_id: VmId, epoch: Count, observed: Observation });
export type Report = Of<typeof Report>;
/**
 * `unwanted` answers `suspended`: the VM must be resumed; and `stopped` without the head's commit: the VM has failed instead.
 * `ignored`: nothing changed, and nobody was told of `recovered`.
 */
export const ReportResponse = named('ReportResponse', {
  outcome: oneOf(['accepted', 'fenced', 'unwanted', 'ignored']),
});
export type ReportResponse = Of<typeof ReportResponse>;

/** Of a VM of this host. */
export const UserDataRequest = named('UserDataRequest', { vm_id: VmId });
export type UserDataRequest = Of<typeof UserDataRequest>;
export const UserDataResponse = named('UserDataResponse', {
  script: nullable(Type.String({ maxLength: 2 ** 20 })),
});
export type UserDataResponse = Of<typeof UserDataResponse>;

/** What a flush did. The control plane makes the receipt from the commit that it names, which must be the disk's head. */
export const FlushResult = named('FlushResult', {
  /** The head that has everything written before the flush. */
  commit_id: Uuid,
  dirty_bytes: Bytes,
  uploaded_bytes: Bytes,
  segments: whole(0, SEGMENTS_MAX),
  duration_ms: Milliseconds,
  consistency: Consistency,
});
export type FlushResult = Of<typeof FlushResult>;

export const FlushReport = Type.Union([
  closed({ flush_id: FlushId, state: Type.Literal('running') }),
  closed({ flush_id: FlushId, state: Type.Literal('done'), result: FlushResult }),
  closed({ flush_id: FlushId, state: Type.Literal('failed'), error: FlushError }),
]);
export type FlushReport = Of<typeof FlushReport>;

/** The first failure of automatic flushes since one succeeded. */
export const FlushFailure = named('FlushFailure', { vm_id: VmId, epoch: Count, error: FlushError });
export type FlushFailure = Of<typeof FlushFailure>;

/** A new generation: the head's plus one. A repeated commit is accepted once. */
export const CommitRequest = named('CommitRequest', {
  instance_id: InstanceId,
  vm_id: VmId,
  epoch: Count,
  generation: Count,
  /** Random: the head's id once this is committed. */
  commit_id: Uuid,
  /** The `commit_id` of the head that it follows. With any other head it is refused. */
  parent_id: Uuid,
  image_version: Sha256,
  /** Of this disk, epoch and generation. */
  segments: listOf(SegmentRef, SEGMENTS_MAX),
  consistency: Consistency,
  /** The dirty bytes, for the event. */
  dirty_bytes: Bytes,
});
export type CommitRequest = Of<typeof CommitRequest>;
export const CommitResponse = Type.Union([
  closed({ outcome: Type.Literal('committed'), durable_at: Time }),
  closed({ outcome: Type.Literal('fenced'), why: Text }),
]);
export type CommitResponse = Of<typeof CommitResponse>;

/** The head that an overlay last equalled, and the VM that wrote the overlay. */
export const LineageRequest = named('LineageRequest', {
  instance_id: InstanceId,
  vm_id: VmId,
  generation: Count,
  commit_id: Uuid,
});
export type LineageRequest = Of<typeof LineageRequest>;
export const LineageResponse = named('LineageResponse', {
  /** The database knows that head. If not, the overlay is ahead: the database has lost commits. */
  known: Type.Boolean(),
  /** This VM began from or committed the present head, so its overlay has all of it. */
  continues: Type.Boolean(),
});
export type LineageResponse = Of<typeof LineageResponse>;

/** A VM that has left an overlay on the host, and that may be one that the database does not know. */
export const UnknownVmReport = named('UnknownVmReport', { instance_id: InstanceId, vm_id: VmId });
export type UnknownVmReport = Of<typeof UnknownVmReport>;

/** Fingerprints of the keys that the guest accepts. Connections with other keys have ended. */
export const KeysReport = named('KeysReport', {
  vm_id: VmId,
  epoch: Count,
  applied_keys: listOf(Fingerprint, KEYS_MAX),
});
export type KeysReport = Of<typeof KeysReport>;

/** Fingerprints of the keys that logged in since the last such report, from sshd's log. */
export const LoginsReport = named('LoginsReport', {
  vm_id: VmId,
  epoch: Count,
  fingerprints: listOf(Fingerprint, KEYS_MAX),
});
export type LoginsReport = Of<typeof LoginsReport>;

/** The mark of the object store (object-store/store-mark.ts); null until the control plane has written it. */
export const ObjectStoreResponse = named('ObjectStoreResponse', {
  mark: nullable(matching('^[\\x21-\\x7e]+$', 200)),
});
export type ObjectStoreResponse = Of<typeof ObjectStoreResponse>;

/** Of one call. */
const PERMISSIONS_MAX = 64;

const Key = matching('^[A-Za-z0-9._/-]+$', 512);

/** What a host without credentials for the bucket may do with single objects: requests to the store that the control plane has signed. */
export const ObjectRequest = Type.Union([
  closed({ method: oneOf(['GET', 'HEAD']), key: Key }),
  /** Creates the object, with exactly these bytes. There are some: see object-store/sign-request.ts. */
  closed({ method: Type.Literal('PUT'), key: Key, size_bytes: whole(1, 2 ** 25), sha256: Sha256 }),
]);
export type ObjectRequest = Of<typeof ObjectRequest>;

export const SignedRequest = named('SignedRequest', {
  url: matching('^https?://[\\x21-\\x7e]+$', 2_048),
  /** To be sent as they are; a `range` may be added. Valid for 15 minutes. */
  headers: listOf(
    closed({ name: matching('^[a-z0-9-]+$', 64), value: matching('^[\\x20-\\x7e]*$', 8_192) }),
    32,
  ),
});
export type SignedRequest = Of<typeof SignedRequest>;

export const ObjectPermissionsRequest = named('ObjectPermissionsRequest', {
  objects: listOf(ObjectRequest, PERMISSIONS_MAX),
});
/** In the order of the requests. Null: the host may not do that now. */
export const ObjectPermissionsResponse = named('ObjectPermissionsResponse', {
  permissions: listOf(nullable(SignedRequest), PERMISSIONS_MAX),
});
export type ObjectPermissionsResponse = Of<typeof ObjectPermissionsResponse>;
