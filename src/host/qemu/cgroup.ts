/**
 * Limits of one VM's process: a control group `berth/<instance id>` under each controller (version 1) or in the one
 * hierarchy (version 2), per the kernel's admin-guide/cgroup-v1 and cgroup-v2.
 * It is at the top, not below the agent's group, because a service manager that ends that group must not end the VMs.
 * Invariant: either every controller of {@link CONTROLLERS} limits the process, or the reason is returned. If there is an I/O
 * controller, the process is in its group too, so VMs have equal shares of a disk whose scheduler supports shares.
 * `below` limits their rates.
 */
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { assert, present } from '../../shared/assert.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import { DEVICES, TCG_CACHE_MIB } from './qemu-command.ts';
import type { QmpClient } from './qmp-client.ts';
import type { Accelerator } from './vm-spec.ts';

const CONTROLLERS = ['cpu', 'memory', 'pids'] as const;
export type Controller = (typeof CONTROLLERS)[number];
/** The I/O controller in version 1 and 2. */
const SHARES = { 1: 'blkio', 2: 'io' } as const;

const PERIOD_US = 100_000;
/** Half a CPU for disk and network emulation, which run beside the virtual CPUs. */
const OVERHEAD_CPU = 0.5;
/** QEMU itself and its I/O buffers. */
const OVERHEAD_MIB = 256;
/**
 * The page cache of the VM's disk counts too, though the host can reclaim it. At the limit each new page first reclaims
 * another, which costs a tenth of the guest's I/O without this allowance.
 */
const DISK_CACHE_MIB = 512;
/** Virtual CPUs, main loop, RCU, and QEMU's pool of up to 64 I/O threads. */
const OVERHEAD_PIDS = 96;
const PARENT = 'berth';
/**
 * The share of all VMs together beside the host's other processes: one busy process for each core. The kernel's default is
 * one process in total, which would starve guests on a busy host. cpu.shares is at most 262144, cpu.weight 10000.
 */
const PARENT_SHARES = Math.min(262_144, 1_024 * availableParallelism());
const PARENT_WEIGHT = Math.min(10_000, 100 * availableParallelism());

export interface VmLimits {
  readonly cpu_quota_us: number;
  readonly cpu_period_us: number;
  readonly memory_bytes: number;
  readonly pids: number;
}

type Roots = Readonly<Partial<Record<Controller | (typeof SHARES)[1], string>>>;

/** Where the controllers are mounted. Version 2 has one mount for all. */
export type CgroupMounts = (
  | { readonly version: 2; readonly root: string }
  | { readonly version: 1; readonly roots: Roots }
) & {
  /** Instead of `berth`: two hosts on one machine may briefly have the same instance. */
  readonly parent?: string;
};

export type LimitResult =
  | { readonly limited: true; readonly version: 1 | 2 }
  | { readonly limited: false; readonly reason: string };

/** The limits of a VM's process: the instance's size and QEMU's overhead. */
export function vmLimits(vm: {
  readonly cpus: number;
  readonly memory_mib: number;
  readonly accel: Accelerator;
}): VmLimits {
  const code_mib = vm.accel === 'tcg' ? TCG_CACHE_MIB : 0;
  return {
    cpu_quota_us: Math.round((vm.cpus + OVERHEAD_CPU) * PERIOD_US),
    cpu_period_us: PERIOD_US,
    memory_bytes: (vm.memory_mib + OVERHEAD_MIB + code_mib + DISK_CACHE_MIB) * 1024 * 1024,
    pids: vm.cpus + OVERHEAD_PIDS,
  };
}

/**
 * Parses /proc/self/mountinfo (proc(5)). If both versions are mounted, version 1 is used if it has the controllers, because
 * a controller is in one of them only. Null: there are none.
 */
export function parseCgroupMounts(mountinfo: string): CgroupMounts | null {
  const roots: { -readonly [name in keyof Roots]: string } = {};
  let unified: string | undefined;
  for (const line of mountinfo.split('\n')) {
    const [left, right] = line.split(' - ');
    const mount_point = left
      ?.split(' ')[4]
      ?.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
    const [type, , super_options] = right?.split(' ') ?? [];
    if (mount_point === undefined) continue;
    if (type === 'cgroup2') unified ??= mount_point;
    if (type !== 'cgroup') continue;
    for (const controller of [...CONTROLLERS, SHARES[1]] as const) {
      if (super_options?.split(',').includes(controller)) roots[controller] ??= mount_point;
    }
  }
  if (Object.keys(roots).length > 0) return { version: 1, roots };
  return unified === undefined ? null : { version: 2, root: unified };
}

/** The mounts of this host. */
export function hostCgroups(): CgroupMounts | null {
  return parseCgroupMounts(readFileSync('/proc/self/mountinfo', 'utf8'));
}

/**
 * Applies the limits to the process with all its threads. Never throws: a host that cannot do it runs its VMs without limits
 * and reports the reason.
 */
export function limitProcess(
  mounts: CgroupMounts | null,
  instance_id: string,
  pid: number,
  limits: VmLimits,
): LimitResult {
  assert(isId('inst', instance_id), 'instance_id is not an instance id');
  if (!mounts) return { limited: false, reason: 'this host mounts no control groups' };
  try {
    if (mounts.version === 2) limitV2(mounts.root, groupOf(mounts, instance_id), pid, limits);
    else limitV1(mounts.roots, groupOf(mounts, instance_id), pid, limits);
    return { limited: true, version: mounts.version };
  } catch (error) {
    return { limited: false, reason: `control groups cannot be used: ${messageOf(error)}` };
  }
}

/**
 * Removes the groups of an instance whose process has ended. Returns the reason when one stays (EBUSY: it still has a
 * process); call it again later.
 */
export function removeLimits(mounts: CgroupMounts | null, instance_id: string): string | null {
  assert(isId('inst', instance_id), 'instance_id is not an instance id');
  if (!mounts) return null;
  let reason: string | null = null;
  const roots = mounts.version === 2 ? [mounts.root] : Object.values(mounts.roots);
  for (const root of new Set(roots)) {
    try {
      rmdirSync(join(root, ...groupOf(mounts, instance_id)));
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') reason = messageOf(error);
    }
  }
  return reason;
}

type Group = readonly [parent: string, name: string];

function groupOf({ parent = PARENT }: CgroupMounts, instance_id: string): Group {
  return [parent, instance_id];
}

function limitV1(roots: Roots, name: Group, pid: number, limits: VmLimits): void {
  const missing = CONTROLLERS.filter((controller) => roots[controller] === undefined);
  const files: Record<Controller, Record<string, number>> = {
    cpu: { 'cpu.cfs_period_us': limits.cpu_period_us, 'cpu.cfs_quota_us': limits.cpu_quota_us },
    memory: { 'memory.limit_in_bytes': limits.memory_bytes },
    pids: { 'pids.max': limits.pids },
  };
  for (const controller of CONTROLLERS) {
    const root = roots[controller];
    if (root === undefined) continue;
    const group = join(root, ...name);
    mkdirSync(group, { recursive: true });
    if (controller === 'cpu') writeFileSync(join(root, name[0], 'cpu.shares'), String(PARENT_SHARES));
    for (const [file, value] of Object.entries(files[controller])) {
      writeFileSync(join(group, file), String(value));
    }
    writeFileSync(join(group, 'cgroup.procs'), String(pid));
  }
  const shares = roots[SHARES[1]];
  if (shares !== undefined) {
    mkdirSync(join(shares, ...name), { recursive: true });
    writeFileSync(join(shares, ...name, 'cgroup.procs'), String(pid));
  }
  if (missing.length > 0) throw new Error(`the controllers ${missing.join(', ')} are not mounted`);
}

function limitV2(root: string, name: Group, pid: number, limits: VmLimits): void {
  const parent = join(root, name[0]);
  const group = join(root, ...name);
  mkdirSync(parent, { recursive: true });
  for (const folder of [root, parent]) {
    const words = (file: string) => readFileSync(join(folder, file), 'utf8').trim().split(/\s+/);
    const enabled = words('cgroup.subtree_control');
    const shares = words('cgroup.controllers').filter((controller) => controller === SHARES[2]);
    const wanted = [...CONTROLLERS, ...shares].filter((controller) => !enabled.includes(controller));
    if (wanted.length > 0) {
      writeFileSync(join(folder, 'cgroup.subtree_control'), wanted.map((name) => `+${name}`).join(' '));
    }
  }
  writeFileSync(join(parent, 'cpu.weight'), String(PARENT_WEIGHT));
  mkdirSync(group, { recursive: true });
  writeFileSync(join(group, 'cpu.max'), `${limits.cpu_quota_us} ${limits.cpu_period_us}`);
  writeFileSync(join(group, 'memory.max'), String(limits.memory_bytes));
  // Swapping guest memory would only hide a limit that is too small.
  if (existsSync(join(group, 'memory.swap.max'))) writeFileSync(join(group, 'memory.swap.max'), '0');
  writeFileSync(join(group, 'pids.max'), String(limits.pids));
  writeFileSync(join(group, 'cgroup.procs'), String(pid));
}

/**
 * Limits the I/O rate of one VM's disk in QEMU, so that no guest takes the whole disk of the host. The burst allows for a
 * boot, a build or the start of a database. A flush, which QEMU does itself, does not count.
 */

const MIB = 2 ** 20;
/** Seconds. */
const BURST_LENGTH = 10;

export const DISK_LIMITS = {
  bps: 512 * MIB,
  iops: 25_000,
  bps_max: 2_048 * MIB,
  iops_max: 100_000,
} as const;

/** Call it before the guest runs. */
export async function limitDisk(qmp: QmpClient): Promise<void> {
  const { bps, iops, bps_max, iops_max } = DISK_LIMITS;
  const all = await qmp.execute('query-block', undefined);
  // On PCI its path contains the device's name.
  const disk = all.find(({ qdev }) => qdev?.split('/').includes(DEVICES.disk));
  await qmp.execute('block_set_io_throttle', {
    id: present(disk?.qdev, 'the path of the disk'),
    ...{ bps, bps_rd: 0, bps_wr: 0, iops, iops_rd: 0, iops_wr: 0 },
    ...{ bps_max, bps_max_length: BURST_LENGTH, iops_max, iops_max_length: BURST_LENGTH },
  });
}
