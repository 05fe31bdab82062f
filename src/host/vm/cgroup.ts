/**
 * Limits of one VM's process: a control group `berth/<instance id>` under each controller (version 1) or in the one
 * hierarchy (version 2), per the kernel's admin-guide/cgroup-v1 and cgroup-v2.
 * It hangs at the top, not below our own group: a service manager that ends our group must not end the VMs.
 * Invariant: either every controller of {@link CONTROLLERS} limits the process, or the reason why not is returned,
 * to be shown. Where there is a controller for I/O, the process is in a group of it too: VMs have equal shares of a disk whose
 * scheduler knows shares. How much it may read and write is `disk-limits.ts`.
 */
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { assert } from '../../lib/assert.ts';
import { errnoOf, messageOf } from '../../lib/errors.ts';
import { isId } from '../../lib/ids.ts';
import { type Accelerator, TCG_CACHE_MIB } from './qemu-command.ts';

export const CONTROLLERS = ['cpu', 'memory', 'pids'] as const;
export type Controller = (typeof CONTROLLERS)[number];
/** Of I/O: in version 1 and 2. */
const SHARES = { 1: 'blkio', 2: 'io' } as const;

const PERIOD_US = 100_000;
/** Disk and network emulation run beside the virtual cpus: half a cpu for them. */
const OVERHEAD_CPU = 0.5;
/** QEMU itself and its I/O buffers. */
const OVERHEAD_MIB = 256;
/**
 * The system's cache of the VM's disk is counted too, though it is given up whenever the host needs the memory. At the
 * limit each page of it costs the guest a look for another one to give up: a tenth of its I/O without this room.
 */
const DISK_CACHE_MIB = 512;
/** Virtual cpus, main loop, RCU, and QEMU's pool of up to 64 I/O threads. */
const OVERHEAD_PIDS = 96;
const PARENT = 'berth';
/**
 * All VMs of a host together against its other processes: as one busy process a core. The kernel's default is one
 * process in all, and guests would hardly run beside anything that is busy. cpu.shares is at most 262144, cpu.weight 10000.
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

/** Where the controllers are mounted. Version 2 has one place for all. */
export type CgroupMounts = (
  | { readonly version: 2; readonly root: string }
  | { readonly version: 1; readonly roots: Roots }
) & {
  /** In the place of `berth`: two hosts on one machine may hold the same instance for a moment. */
  readonly parent?: string;
};

export type LimitResult =
  | { readonly limited: true; readonly version: 1 | 2 }
  | { readonly limited: false; readonly reason: string };

/** What a VM's process may use: what was asked for, and what QEMU needs beside it. */
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
 * Which controllers are where, from the text of /proc/self/mountinfo (proc(5)). Version 1 wins where both are
 * mounted and it holds the controllers: a controller is in one of them only. Null when there is none.
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
 * Puts the process, with all its threads, under the limits. Never throws: a host where it cannot be done runs its
 * VMs without limits and says so.
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
 * Removes the groups of an instance whose process has ended. Returns a reason when one stays (EBUSY: a process is
 * still in it); call again later.
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
  // Swapped guest memory would only hide that the limit is too small.
  if (existsSync(join(group, 'memory.swap.max'))) writeFileSync(join(group, 'memory.swap.max'), '0');
  writeFileSync(join(group, 'pids.max'), String(limits.pids));
  writeFileSync(join(group, 'cgroup.procs'), String(pid));
}
