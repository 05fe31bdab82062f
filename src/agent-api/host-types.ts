/** What a host says of itself, and of the images that it has. */
import { Type } from 'typebox';
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

/** What the agent says about itself at its start and every 5 s. */
export const HostFacts = named('HostFacts', {
  accelerator: oneOf(['kvm', 'tcg']),
  accelerator_reason: Text,
  cpus: whole(1, 4_096),
  /** 64 TiB at most. */
  memory_mib: whole(1, 2 ** 26),
  images: listOf(named('HostImage', { id: ImageId, version: Sha256 }), IMAGES_MAX),
  /** null when the object store works, else what is wrong with it. */
  object_store_problem: nullable(Text),
  /** null, or why users of their own or egress rules are not in force. Limits that cannot be set are in the agent's log. */
  isolation_problem: nullable(Text),
});
export type HostFacts = Of<typeof HostFacts>;

export const FileSystemUse = named('FileSystemUse', {
  used_bytes: Bytes,
  /** Of what others than root may use. */
  total_bytes: Bytes,
});
export type FileSystemUse = Of<typeof FileSystemUse>;
export const DiskReport = named('DiskReport', {
  instance_id: InstanceId,
  dirty_bytes: Bytes,
  /** The guest's root file system as it sees it; asked for about once a minute, else absent. */
  root: Type.Optional(FileSystemUse),
});
export type DiskReport = Of<typeof DiskReport>;
export const Heartbeat = named('Heartbeat', { facts: HostFacts, disks: listOf(DiskReport, DISKS_MAX) });
export type Heartbeat = Of<typeof Heartbeat>;
export const HeartbeatResponse = named('HeartbeatResponse', { host_id: HostId });

/** An image that this host has, by the hash of its root file system; `needed`: a disk here is about to be durable on it. */
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
 * In the order of what was offered. `wanted`: put it into the object store and register it; `removed`: nobody needs it
 * any more; `unneeded`: another build of the same recipe is what new disks are made over.
 */
export const OfferResponse = named('OfferResponse', {
  verdicts: listOf(oneOf(['stored', 'wanted', 'removed', 'unneeded']), IMAGES_MAX),
});
export type OfferResponse = Of<typeof OfferResponse>;
/** All of it is in the object store. */
export const ImageRegistration = named('ImageRegistration', {
  id: ImageId,
  version: Sha256,
  recipe: Text,
  index_sha256: Sha256,
  size_bytes: Bytes,
  stored_bytes: Bytes,
  /** What this host makes new disks over. */
  newest: Type.Boolean(),
});
export type ImageRegistration = Of<typeof ImageRegistration>;
/** Without a version: what new disks are made over. */
export const FindImageRequest = named('FindImageRequest', { id: ImageId, version: nullable(Sha256) });
export type FindImageRequest = Of<typeof FindImageRequest>;
export const FoundImage = named('FoundImage', { version: Sha256, index_sha256: Sha256 });
export type FoundImage = Of<typeof FoundImage>;
export const FindImageResponse = nullable(FoundImage);
