import type { ControlPlaneClient } from '../agent-api/client.ts';
import type { Paths } from '../config/paths.ts';
import type { CompressPool } from '../disk-format/compress-pool.ts';
import type { Log } from '../lib/log.ts';
import type { ObjectStore } from '../object-store/object-store.ts';
import type { RunCache } from './block/run-cache.ts';
import type { BootSlots } from './boot-slots.ts';
import type { ImageKeeper } from './image/image-keeper.ts';
import type { HostLease } from './lease/host-lease.ts';
import type { Templates } from './template/templates.ts';
import type { CgroupMounts } from './vm/cgroup.ts';
import type { Jail } from './vm/jail.ts';
import type { Accelerator } from './vm/qemu-command.ts';
import { type VmUser, vmUser } from './vm/uid.ts';

/** What every VM's runner on this host shares. */
export interface HostContext {
  readonly paths: Paths;
  readonly log: Log;
  readonly client: ControlPlaneClient;
  /** Without it no guest runs here. */
  readonly lease: HostLease;
  readonly store: ObjectStore;
  readonly images: ImageKeeper;
  readonly pool: CompressPool;
  /** What lazy reads have fetched lately. */
  readonly runs: RunCache;
  readonly boots: BootSlots;
  /** What boots go on from. */
  readonly templates: Templates;
  readonly accel: Accelerator;
  readonly qemu_binary: string;
  readonly qemu_img_binary: string;
  /** As root each VM runs as a user of its own, in this group; null: all run as ourselves. */
  readonly vm_gid: number | null;
  /** What their QEMUs see of this host; null: all that their users may. */
  readonly jail: Jail | null;
  readonly cgroups: CgroupMounts | null;
}

/** The user that an instance's VM runs as; null where all VMs run as our own user. */
export function vmOwner({ vm_gid }: Pick<HostContext, 'vm_gid'>, ssh_port: number): VmUser | null {
  return vm_gid === null ? null : { uid: vmUser(ssh_port).uid, gid: vm_gid };
}
