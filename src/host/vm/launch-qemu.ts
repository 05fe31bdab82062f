/** Starts a VM's QEMU, paused, as the VM's own user, in its jail and control group. */
import { open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Assignment } from '../../protocol/types.ts';
import type { LazyOverlay } from '../disk/lazy-overlay.ts';
import { overlayPaths } from '../disk/overlay-files.ts';
import type { HostContext } from '../host-context.ts';
import type { HostImage } from '../images/host-images.ts';
import { guestAddress, type VmNetwork } from '../network/addresses.ts';
import { onTap, routeToGuest, TAP_FD } from '../network/guest-network.ts';
import { forgetConnections } from '../network/hold-connections.ts';
import { limitProcess, vmLimits } from '../qemu/cgroup.ts';
import { freeLoopbackPort } from '../qemu/free-port.ts';
import { filesOfVm } from '../qemu/jail.ts';
import type { ProcessIdentity } from '../qemu/process-identity.ts';
import { kernelCommandLine, macAddress, qemuArguments } from '../qemu/qemu-command.ts';
import { type LaunchedVm, launchVm } from '../qemu/qemu-process.ts';
import { prepareRuntimeDir, type VmUser } from '../qemu/uid.ts';
import type { VmSpec } from '../qemu/vm-spec.ts';
import { incomingSocket } from './load-memory.ts';
import { makeHostKey } from './make-host-key.ts';
import { makeVmFolder, type VmFolder } from './record.ts';

const LAUNCH_TRIES = 3;

export interface LaunchedQemu {
  readonly vm: LaunchedVm;
  readonly network: VmNetwork;
  readonly kernel_parameters: string;
}

export interface QemuParts {
  readonly folder: VmFolder;
  readonly image: HostImage;
  readonly owner: VmUser | null;
  readonly lazy: LazyOverlay | null;
  /** The guest boots: QEMU passes it a host key. */
  readonly offers_host_key: boolean;
  /** QEMU waits for a suspended VM's memory, from a socket. */
  readonly resumes: boolean;
  /** QEMU waits for the command to read this file. */
  readonly memory_fd: number | undefined;
}

type Placed = { readonly context: HostContext; readonly assignment: Assignment };

export async function launchQemu(placed: Placed, parts: QemuParts): Promise<LaunchedQemu> {
  const host_key_path = parts.offers_host_key ? await offerHostKey(parts) : undefined;
  try {
    const launched = await launchOnFreePort(placed, parts, host_key_path);
    // Before it gets a memory: memory that a process has already stays in the group that it was charged to.
    limitMachine(placed, launched.vm.identity);
    return launched;
  } finally {
    if (host_key_path) await rm(host_key_path, { force: true });
  }
}

/** Another program may take the port between our look and QEMU's. */
async function launchOnFreePort(
  placed: Placed,
  parts: QemuParts,
  host_key_path: string | undefined,
): Promise<LaunchedQemu> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await launchOnce(placed, parts, host_key_path);
    } catch (error) {
      const taken = error instanceof Error && /host forwarding|Address already in use/i.test(error.message);
      if (!taken || attempt === LAUNCH_TRIES) throw error;
    }
  }
}

async function launchOnce(
  { context, assignment: { instance_id, vm_id, spec } }: Placed,
  { folder, image, owner, lazy, resumes, memory_fd }: QemuParts,
  host_key_path: string | undefined,
): Promise<LaunchedQemu> {
  const tap = owner && context.network;
  const network: VmNetwork = tap
    ? { kind: 'tap', address: guestAddress(spec.slot) }
    : { kind: 'user', ssh_forward_port: await freeLoopbackPort() };
  const machine: VmSpec = {
    ...{ instance_id, vm_id, accel: context.accel, hostname: spec.hostname, ...sizeOf(spec) },
    kernel_path: image.kernel_path,
    initrd_path: image.initrd_path,
    overlay_path: overlayPaths(context.paths.overlays, instance_id).overlay,
    base_path: image.rootfs_path,
    ...(lazy ? { lazy: lazy.backing } : {}),
    runtime_dir: folder.runtime,
    network: network.kind === 'tap' ? { kind: 'tap', fd: TAP_FD } : { ...network, restricted: false },
    ...(host_key_path === undefined ? {} : { host_key_path }),
    ...(resumes ? { incoming: { socket_path: incomingSocket(folder) } } : {}),
    ...(memory_fd === undefined ? {} : { incoming: 'told' as const }),
  };
  if (tap) {
    // The agent removes them too, but later, and not while it was down.
    const forgotten = forgetConnections(tap, spec.slot).catch(() => undefined);
    await Promise.all([routeToGuest(tap, spec.slot), forgotten]);
  }
  const vm = await launchVm({
    qemu_binary: context.qemu_binary,
    arguments: qemuArguments(machine),
    ...(owner ? { run_as: owner } : {}),
    ...(owner && context.jail ? { jail: { jail: context.jail, files: filesOfVm(machine) } } : {}),
    ...(tap
      ? { onTap: (command) => onTap(tap, { slot: spec.slot, mac: macAddress(instance_id) }, command) }
      : {}),
    ...(memory_fd === undefined ? {} : { memory_fd }),
    runtime_dir: folder.runtime,
    log_path: folder.qemu_log,
  });
  return { vm, network, kernel_parameters: kernelCommandLine(machine) };
}

/**
 * A host key that QEMU reads as it starts: under emulation a guest needs half a second to generate one. The file lies in a
 * folder that QEMU's jail shows, so that nothing holds it when it is removed.
 */
async function offerHostKey({ folder: { runtime }, owner }: QemuParts): Promise<string> {
  const path = join(runtime, 'host-key');
  const { host_key, host_key_pub } = makeHostKey();
  await rm(path, { force: true });
  await using file = await open(path, 'wx', 0o600);
  await file.writeFile(host_key_pub + host_key);
  if (owner) await file.chown(owner.uid, owner.gid);
  return path;
}

export async function makeFolders(folder: VmFolder, owner: VmUser | null): Promise<void> {
  await makeVmFolder(folder);
  if (owner) prepareRuntimeDir(folder.runtime, owner.uid, owner.gid);
  else await makeVmFolder({ ...folder, folder: folder.runtime });
}

export function sizeOf({ cpus, memory_mib }: Assignment['spec']) {
  return { cpus, memory_mib };
}

function limitMachine(
  { context, assignment: { instance_id, spec } }: Placed,
  { pid }: ProcessIdentity,
): void {
  const limits = vmLimits({ cpus: spec.cpus, memory_mib: spec.memory_mib, accel: context.accel });
  const result = limitProcess(context.cgroups, instance_id, pid, limits);
  if (!result.limited) context.log.warn({ instance_id, reason: result.reason }, 'the VM runs without limits');
}
