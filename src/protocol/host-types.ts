/** A host's reports of itself and its images. */
import { Type } from 'typebox';
import { CONTROL_PLANES_MAX, ControlPlanePlace } from './peer-types.ts';
import {
  Bytes,
  HostId,
  ImageId,
  InstanceId,
  listOf,
  named,
  nullable,
  type Of,
  oneOf,
  Sha256,
  Text,
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
  control_planes: Type.Optional(listOf(ControlPlanePlace, CONTROL_PLANES_MAX)),
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
