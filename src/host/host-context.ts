/**
 * Defines `HostContext`, what all reconcilers of a host share: control plane, object store, folders, network, boot
 * slots.
 */
import type { Paths } from '../config/paths.ts';
import type { CompressPool } from '../disk-format/compress-pool.ts';
import type { ObjectStore } from '../object-store/object-store.ts';
import type { ControlPlaneClient } from '../protocol/client.ts';
import type { Log } from '../shared/log.ts';
import type { BootSlots } from './boot-slots.ts';
import type { RunCache } from './disk/run-cache.ts';
import type { EgressControl } from './egress/egress-control.ts';
import type { ImageKeeper } from './images/host-images.ts';
import type { HostLease } from './lease/host-lease.ts';
import type { VmNetwork } from './network/addresses.ts';
import type { GuestNetwork } from './network/guest-network.ts';
import { type CgroupMounts, type Jail, type VmUser, vmUser } from './qemu/confinement.ts';
import type { Accelerator } from './qemu/qemu-command.ts';
import type { Templates } from './vm/templates.ts';

/** What all runners of this host share. */
export interface HostContext {
  readonly paths: Paths;
  readonly log: Log;
  readonly client: ControlPlaneClient;
  /** Without a held lease no guest runs on this host. */
  readonly lease: HostLease;
  readonly store: ObjectStore;
  readonly images: ImageKeeper;
  readonly pool: CompressPool;
  /** Runs of blocks that lazy reads fetched recently. */
  readonly runs: RunCache;
  readonly boots: BootSlots;
  /** Memory images that starts use instead of booting. */
  readonly templates: Templates;
  readonly accel: Accelerator;
  readonly qemu_binary: string;
  readonly qemu_img_binary: string;
  /** As root: the group of all VMs' users. null: all VMs run as our own user. */
  readonly vm_gid: number | null;
  /** The jail of each QEMU; null: none. */
  readonly jail: Jail | null;
  readonly cgroups: CgroupMounts | null;
  /** VMs have TAP devices in it; null: QEMU's user network. */
  readonly network: GuestNetwork | null;
  readonly egress: EgressControl;
}

export function networkKind({ network }: Pick<HostContext, 'network'>): VmNetwork['kind'] {
  return network === null ? 'user' : 'tap';
}

/** The user that an instance's VM runs as; null where all VMs run as our own user. */
export function vmOwner({ vm_gid }: Pick<HostContext, 'vm_gid'>, slot: number): VmUser | null {
  return vm_gid === null ? null : { uid: vmUser(slot).uid, gid: vm_gid };
}
