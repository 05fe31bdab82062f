/**
 * Defines the messages in which a host reports on itself: facts, disks, images, used minutes and denied destinations.
 * Also the egress policy and the secrets of a VM as its host gets them, and the answer to `berth doctor` on the server.
 */
import { Type } from 'typebox';
import { EGRESS_ENTRIES_MAX, EGRESS_ENTRY_LENGTH_MAX, EGRESS_MODES } from '../shared/egress-policy.ts';
import { CONTROL_PLANES_MAX, ListedControlPlane } from './ingress-types.ts';
import {
  anyText,
  Bytes,
  Count,
  closed,
  HostId,
  ImageId,
  InstanceId,
  listOf,
  matching,
  named,
  nullable,
  type Of,
  oneOf,
  Port,
  Sha256,
  Text,
  Time,
  whole,
} from './schemas.ts';

export const IMAGES_MAX = 1_000;
const DISKS_MAX = 20_000;

export const HostImage = named('HostImage', { id: ImageId, version: Sha256 });

/** Sent at the agent's start and every 5 s. */
export const HostFacts = named('HostFacts', {
  accelerator: oneOf(['kvm', 'tcg']),
  accelerator_reason: Text,
  cpus: whole(1, 4_096),
  /** 64 TiB at most. */
  memory_mib: whole(1, 2 ** 26),
  images: listOf(HostImage, IMAGES_MAX),
  /** The problem of the object store; null when it works. */
  object_store_problem: nullable(Text),
  /** Why VMs lack their own users or egress rules; null when they have both. Missing limits are in the agent's log. */
  isolation_problem: nullable(Text),
  /** Whether VMs can have a restricted egress; absent: no. */
  enforces_egress: Type.Optional(Type.Boolean()),
  /** A hash of what two hosts must share for one to resume a VM from memory that the other saved; absent: not known. */
  machine: Type.Optional(Sha256),
});
export type HostFacts = Of<typeof HostFacts>;

export const FileSystemUse = named('FileSystemUse', {
  used_bytes: Bytes,
  /** Of the space that users other than root may use. */
  total_bytes: Bytes,
});
export type FileSystemUse = Of<typeof FileSystemUse>;
export const DiskReport = named('DiskReport', {
  instance_id: InstanceId,
  dirty_bytes: Bytes,
  /** The guest's root file system, from the guest; about once a minute, else absent. */
  root: Type.Optional(FileSystemUse),
});
export type DiskReport = Of<typeof DiskReport>;
export const Heartbeat = named('Heartbeat', { facts: HostFacts, disks: listOf(DiskReport, DISKS_MAX) });
export type Heartbeat = Of<typeof Heartbeat>;
/** `control_planes`: those that live; absent or empty: the one that the host knows. */
export const HeartbeatResponse = named('HeartbeatResponse', {
  host_id: HostId,
  control_planes: Type.Optional(listOf(ListedControlPlane, CONTROL_PLANES_MAX)),
  /** The host is to replace its credential; absent: no. */
  rotate: Type.Optional(Type.Boolean()),
});
/** The SHA-256 of the credential that the host has made: the credential itself comes only with later calls. */
export const CredentialRequest = named('CredentialRequest', { credential_sha256: Sha256 });
export const CredentialResponse = named('CredentialResponse', { host_id: HostId });

/** An image that this host has, by the hash of its root file system; `needed`: a disk on this host is about to be committed on top of it. */
export const OfferedImage = named('OfferedImage', {
  id: ImageId,
  version: Sha256,
  recipe: Text,
  needed: Type.Boolean(),
});
export type OfferedImage = Of<typeof OfferedImage>;
export const OfferRequest = named('OfferRequest', { images: listOf(OfferedImage, IMAGES_MAX) });
export type OfferRequest = Of<typeof OfferRequest>;
/**
 * In the order of the offer. `wanted`: store and register it; `removed`: delete it; `unneeded`: another build of the same
 * recipe is current.
 */
export const OfferResponse = named('OfferResponse', {
  verdicts: listOf(oneOf(['stored', 'wanted', 'removed', 'unneeded']), IMAGES_MAX),
});
export type OfferResponse = Of<typeof OfferResponse>;
/** All objects of the image are in the object store. */
export const ImageRegistration = named('ImageRegistration', {
  id: ImageId,
  version: Sha256,
  recipe: Text,
  index_sha256: Sha256,
  size_bytes: Bytes,
  stored_bytes: Bytes,
  /** It is this host's newest build of the image. */
  newest: Type.Boolean(),
});
export type ImageRegistration = Of<typeof ImageRegistration>;
/** Without a version: the current one. */
export const FindImageRequest = named('FindImageRequest', { id: ImageId, version: nullable(Sha256) });
export type FindImageRequest = Of<typeof FindImageRequest>;
export const FoundImage = named('FoundImage', { version: Sha256, index_sha256: Sha256 });
export type FoundImage = Of<typeof FoundImage>;
export const FindImageResponse = nullable(FoundImage);

/** The measured quantities of a {@link UsedMinute}, in the order of the stored arrays. */
export const METRICS = [
  /** CPUs in use: 1.5 is one and a half. Stored as the share of all of the instance's CPUs. */
  'cpu',
  /** Bytes of memory, as the guest sees them without caches, and on the host. */
  'memory_used',
  'memory_host',
  /** Bytes per second. */
  'disk_read',
  'disk_written',
  'network_received',
  'network_sent',
  /** Bytes that the guest has written and that are not durable yet. */
  'dirty',
] as const;
export type Metric = (typeof METRICS)[number];

/** The most samples in one report. */
const MINUTES_MAX = 1_000;

const Amount = Type.Number({ minimum: 0, maximum: 2 ** 53 });
export const Spread = named('Spread', { mean: Amount, min: Amount, max: Amount });
export type Spread = Of<typeof Spread>;

/** Null: not measured in this minute. */
export type Spreads = Readonly<Record<Metric, Spread | null>>;
const spread = nullable(Spread);
const SpreadOfEach = closed({
  cpu: spread,
  memory_used: spread,
  memory_host: spread,
  disk_read: spread,
  disk_written: spread,
  network_received: spread,
  network_sent: spread,
  dirty: spread,
} satisfies Record<Metric, typeof spread>);

/** What a VM used in one past minute, for the history that the control plane keeps. */
export const UsedMinute = named('UsedMinute', {
  instance_id: InstanceId,
  /** The beginning of the minute. */
  at: Time,
  spreads: SpreadOfEach,
});
export type UsedMinute = Of<typeof UsedMinute>;

export const MinutesReport = named('MinutesReport', { minutes: listOf(UsedMinute, MINUTES_MAX) });
export type MinutesReport = Of<typeof MinutesReport>;

/** A VM's egress policy. */
export const Egress = named('Egress', {
  mode: oneOf(EGRESS_MODES),
  /** In their stored form; they apply in mode `allow`. */
  allow: listOf(matching('^[\\x21-\\x7e]+$', EGRESS_ENTRY_LENGTH_MAX), EGRESS_ENTRIES_MAX),
});

/** The most destinations in one report. */
const DENIALS_MAX = 1_000;

const DeniedDestination = named('DeniedDestination', {
  instance_id: InstanceId,
  /** Of the last attempt. */
  at: Time,
  /** As the guest asked for it, in lower case; null: unknown. */
  name: nullable(matching('^[a-z0-9._-]+$', 253)),
  address: nullable(matching('^[0-9a-f.:]+$', 45)),
  /** Null: a look-up, or a protocol without ports. */
  port: nullable(Port),
  count: whole(1, 2 ** 31 - 1),
});
export type DeniedDestination = Of<typeof DeniedDestination>;

export const DeniedReport = named('DeniedReport', { denials: listOf(DeniedDestination, DENIALS_MAX) });
export type DeniedReport = Of<typeof DeniedReport>;

export const SECRETS_MAX = 50;
export const SECRET_HOSTS_MAX = 20;
export const SECRET_VALUE_MAX_BYTES = 65_536;

/** Kept in memory only; never written to a file or a log. The guest gets the placeholder only. */
export const SecretForHost = named('SecretForHost', {
  name: matching('^[A-Z][A-Z0-9_]*$', 64),
  /** What the guest has in `BERTH_SECRET_<name>`. */
  placeholder: matching('^berth-secret-[0-9a-f]{32}$', 45),
  /** Exact names, or `*.` and a domain. In lower case. */
  hosts: listOf(matching('^(\\*\\.)?[a-z0-9.-]+$', 255), SECRET_HOSTS_MAX),
  /** Replaces the placeholder in headers of HTTPS requests to `hosts`. */
  value: anyText(SECRET_VALUE_MAX_BYTES),
});
export type SecretForHost = Of<typeof SecretForHost>;

/** The instance's certificate authority for intercepted connections, in PEM. Kept in memory only. */
export const SecretsAuthority = named('SecretsAuthority', {
  certificate: anyText(4_096),
  private_key: anyText(4_096),
});
export type SecretsAuthority = Of<typeof SecretsAuthority>;

const WEAKNESSES_MAX = 1_000;
const WORDS_MAX = 1_000;

export const Weakness = named('Weakness', {
  check: anyText(WORDS_MAX),
  found: anyText(WORDS_MAX),
  /** What to set or run. */
  next: anyText(WORDS_MAX),
});
export type Weakness = Of<typeof Weakness>;

/** What `berth doctor` shows on the server, where it can read the host's token. */
export const WeaknessesResponse = named('WeaknessesResponse', {
  /** The server's origins, so that doctor notices when it was asked about another server. */
  origins: listOf(anyText(WORDS_MAX), 10),
  weaknesses: listOf(Weakness, WEAKNESSES_MAX),
  /** Of the object store: bytes that nothing needs any more, and how long they stay. */
  awaiting_removal_bytes: Count,
  removal_delay_seconds: Count,
});
export type WeaknessesResponse = Of<typeof WeaknessesResponse>;
