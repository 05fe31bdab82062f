/**
 * Confines the QEMU of each VM: with an unprivileged user, a jail (bubblewrap), a control group, and limits of its
 * disk's I/O rate.
 *
 * Invariants:
 * - Concurrent VMs have different users: one uid for each slot of the host, from an unused range. The egress rules
 *   cover that range.
 * - In the jail paths are the same as outside, so a process can be identified by its arguments. The jail has the
 *   system's programs and the named files, read-only except the VM's own: no data folder, no home, of /etc only the
 *   resolvers, no /proc, no /sys, only the named devices.
 * - QEMU is the first process of its PID namespace. bubblewrap waits for it outside; the end of bubblewrap does not end
 *   it.
 * - Every controller of {@link CONTROLLERS} limits QEMU's process, or the reason is returned.
 */

import { execFile } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  readlinkSync,
  rmdirSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { chmod, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { assert, present } from '../../shared/assert.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import { type Accelerator, DEVICES, TCG_CACHE_MIB, type VmSpec } from './qemu-command.ts';
import type { QmpClient } from './qmp-client.ts';

export const VM_UID_BASE = 2_000_000;
export const VM_UID_COUNT = 1_000_000;
/** The last of the range, for test guests. No slot reaches it. */
export const PROBE_UID = VM_UID_BASE + VM_UID_COUNT - 1;

/**
 * The user of an installation's egress proxy, beyond those of VMs. Each has its own: the rules of an installation that was removed
 * stay in the kernel, with the resolvers and networks of that time, and must not bind another's egress proxy.
 */
export function egressProxyUid(data_folder_id: string): number {
  return VM_UID_BASE + VM_UID_COUNT + (Number.parseInt(data_folder_id.slice(0, 8), 16) % VM_UID_COUNT);
}

export interface VmUser {
  readonly uid: number;
  readonly gid: number;
}

/** The user of the VM in `slot` of this host. */
export function vmUser(slot: number): VmUser {
  assert(Number.isInteger(slot) && slot >= 0 && slot < VM_UID_COUNT - 1, 'slot is out of range');
  return { uid: VM_UID_BASE + slot, gid: VM_UID_BASE + slot };
}

/**
 * The group that a VM's user needs for /dev/kvm; null: none is needed, none helps, or there is no device. Never root's group,
 * which has access to the host's files. A VM with KVM has this gid, because QEMU 7.2 does not accept an open device.
 */
export function kvmGroup(device_path = '/dev/kvm'): number | null {
  try {
    const { gid, mode } = statSync(device_path);
    const everybody = (mode & 0o006) === 0o006;
    const group = (mode & 0o060) === 0o060 && gid !== 0;
    return group && !everybody ? gid : null;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return null;
    throw error;
  }
}

/** Creates `path` (its parent exists) for QEMU's sockets, owned by this user, 0700. Takes over an existing folder. */
export function prepareRuntimeDir(path: string, uid: number, gid: number): void {
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    if (errnoOf(error) !== 'EEXIST') throw error;
  }
  assert(lstatSync(path).isDirectory(), `${path} is not a folder`);
  chmodSync(path, 0o700);
  chownSync(path, uid, gid);
}

/**
 * Takes the folder of a VM's sockets from its user once QEMU listens, leaving it only search permission. A compromised QEMU
 * then cannot replace anything in it, so the agent may open, create and chown files there by path. Removes those of `sockets`
 * that are not sockets of that user.
 */
export function takeRuntimeDir(path: string, uid: number, sockets: readonly string[]): void {
  chownSync(path, 0, 0);
  chmodSync(path, 0o711);
  for (const socket of sockets) {
    const found = lstatSync(socket, { throwIfNoEntry: false });
    if (found?.isSocket() && found.uid === uid) chmodSync(socket, 0o600);
    else if (found && !found.isDirectory()) unlinkSync(socket);
  }
}

const run = promisify(execFile);
const PROBE_MS = 10_000;
export const CLEAN_ENV = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' } as const;
/** Links on a system with a merged /usr. */
const SYSTEM_FOLDERS = ['/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32'];
const JAIL_DEVICES = ['/dev/null', '/dev/urandom'];

export interface Jail {
  /** The folder mounted as /etc: a mounted file would not show a replaced resolv.conf. Null: none, for tools. */
  readonly etc_dir: string | null;
}

export interface JailFiles {
  readonly reads: readonly string[];
  readonly writes: readonly string[];
  readonly devices?: readonly string[];
}

/** The files of a VM's QEMU. All its sockets are in its runtime folder. */
export function filesOfVm(spec: VmSpec): JailFiles {
  return {
    reads: [spec.kernel_path, spec.initrd_path, spec.base_path],
    writes: [spec.overlay_path, spec.runtime_dir],
    devices: spec.accel === 'kvm' ? ['/dev/kvm'] : [],
  };
}

export interface JailedCommand {
  readonly jail: Jail;
  readonly files: JailFiles;
  /** `operator`: root with only the capability to read any file, and without a network. */
  readonly user: VmUser | 'operator';
  /** bubblewrap writes the process's pid there, as JSON. With it the process outlives the agent; without, it ends with bubblewrap. */
  readonly info_fd?: number;
}

/** The command line that runs `command` in the jail. */
export function inJail({ jail, files, user, info_fd }: JailedCommand, command: readonly string[]): string[] {
  const [program = ''] = command;
  const own_program = program.startsWith('/') && !program.startsWith('/usr/') ? [program] : [];
  const reads = [...own_program, ...files.reads];
  const folders = foldersAbove(['/dev/null', ...reads, ...files.writes]);
  return [
    ...['bwrap', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--as-pid-1', '--chdir', '/'],
    ...(info_fd === undefined ? ['--die-with-parent'] : ['--info-fd', String(info_fd)]),
    ...['--ro-bind', '/usr', '/usr', ...SYSTEM_FOLDERS.flatMap(sameAsHere)],
    ...(jail.etc_dir === null ? [] : ['--ro-bind', jail.etc_dir, '/etc']),
    // bubblewrap creates missing folders with access for root only.
    ...folders.flatMap((path) => ['--dir', path]),
    ...[...JAIL_DEVICES, ...(files.devices ?? [])].flatMap((path) => ['--dev-bind', path, path]),
    ...reads.flatMap((path) => ['--ro-bind', path, path]),
    ...files.writes.flatMap((path) => ['--bind', path, path]),
    ...['--remount-ro', '/'],
    ...(user === 'operator'
      ? ['--unshare-net', '--cap-drop', 'ALL', '--cap-add', 'CAP_DAC_READ_SEARCH']
      : []),
    '--',
    ...(user === 'operator' ? [] : asVmUser(user, info_fd === undefined ? ['--pdeathsig', 'KILL'] : [])),
    ...command,
  ];
}

/** A command prefix that switches to a VM's user for good. Switching clears the effect of `--die-with-parent`. */
export function asVmUser({ uid, gid }: VmUser, more: readonly string[] = []): string[] {
  const ids = ['--reuid', String(uid), '--regid', String(gid), '--clear-groups'];
  return ['setpriv', ...ids, '--inh-caps=-all', '--no-new-privs', ...more, '--'];
}

/** The jail of this host's VMs, or why they have none. Needs root. */
export async function openJail(
  etc_dir: string | null,
): Promise<
  { readonly jail: Jail; readonly problem: null } | { readonly jail: null; readonly problem: string }
> {
  const jail = { etc_dir };
  // On a full disk the old resolvers stay. If the folder is missing, the probe below fails.
  await refreshResolvers(jail).catch(() => undefined);
  const user = { uid: PROBE_UID, gid: PROBE_UID };
  const [file = '', ...args] = inJail({ jail, user, files: { reads: [], writes: [] } }, ['true']);
  try {
    await run(file, args, { timeout: PROBE_MS, env: CLEAN_ENV });
    return { jail, problem: null };
  } catch (error) {
    const stderr = error instanceof Error && 'stderr' in error ? String(error.stderr).trim() : '';
    const why =
      errnoOf(error) === 'ENOENT'
        ? 'bwrap is not installed (Debian: bubblewrap)'
        : (stderr || messageOf(error)).split('\n')[0];
    return {
      jail: null,
      problem: `VMs run without namespaces of their own and see what their user may: ${why}. Mend it and restart Berth`,
    };
  }
}

/** QEMU's user network reloads the file when it changes. */
export async function refreshResolvers({ etc_dir }: Jail): Promise<void> {
  if (etc_dir === null) return;
  const path = join(etc_dir, 'resolv.conf');
  // A host without the file has no resolvers.
  const wanted = (await textOf('/etc/resolv.conf')) ?? '';
  if (wanted === (await textOf(path))) return;
  await mkdir(etc_dir, { recursive: true });
  const temporary = `${path}.${process.pid}`;
  await writeFile(temporary, wanted).catch(async (error: unknown) => {
    await rm(temporary, { force: true });
    throw error;
  });
  for (const [each, mode] of [
    [etc_dir, 0o755],
    [temporary, 0o644],
  ] as const)
    await chmod(each, mode);
  await rename(temporary, path);
}

async function textOf(path: string): Promise<string | null> {
  return readFile(path, 'utf8').catch(() => null);
}

function sameAsHere(path: string): string[] {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found?.isSymbolicLink()) return ['--symlink', readlinkSync(path), path];
  return found ? ['--ro-bind', path, path] : [];
}

/** All parent folders of `paths`, parents first. */
function foldersAbove(paths: readonly string[]): string[] {
  const found = new Set<string>();
  for (const path of paths) {
    assert(path.startsWith('/'), `${path} must be absolute`);
    const way: string[] = [];
    for (let at = dirname(path); at !== '/'; at = dirname(at)) way.unshift(at);
    for (const folder of way) found.add(folder);
  }
  return [...found];
}

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
 *
 * The process gets a control group `berth/<instance id>` under each controller (version 1) or in the one hierarchy (version 2), per
 * the kernel's admin-guide/cgroup-v1 and cgroup-v2. The group is at the top, not below the agent's group, because a service manager
 * that ends that group must not end the VMs. If there is an I/O controller, the process is in its group too, so VMs have equal
 * shares of a disk whose scheduler supports shares. {@link limitDisk} limits their rates.
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

const MIB = 2 ** 20;
/** Seconds. */
const BURST_LENGTH = 10;

export const DISK_LIMITS = {
  bps: 512 * MIB,
  iops: 25_000,
  bps_max: 2_048 * MIB,
  iops_max: 100_000,
} as const;

/**
 * Limits the I/O rate of one VM's disk in QEMU, so that no guest takes the whole disk of the host. The burst allows for a
 * boot, a build or the start of a database. A flush, which QEMU does itself, does not count.
 *
 * Call it before the guest runs.
 */
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
