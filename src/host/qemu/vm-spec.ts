/** The description of a VM, from which `qemu-command.ts` makes QEMU's arguments. */
import { join } from 'node:path';
import { assert } from '../../shared/assert.ts';
import { isId } from '../../shared/ids.ts';

export const ACCELERATORS = ['kvm', 'tcg'] as const;
export type Accelerator = (typeof ACCELERATORS)[number];

/**
 * microvm: virtio-mmio, no PCI, boots faster, needs KVM's clock. q35: the same devices on PCI, and an HPET. Under TCG it is
 * the only machine with a correct guest clock (docs/adr/0004-q35-under-tcg.md).
 */
export const MACHINES = ['microvm', 'q35'] as const;
export type Machine = (typeof MACHINES)[number];

export function machineFor(accel: Accelerator): Machine {
  return accel === 'kvm' ? 'microvm' : 'q35';
}

/** The NBD export that unallocated clusters of an incomplete overlay read from. */
export interface LazyBacking {
  readonly socket_path: string;
  readonly export_name: string;
  /** How long reads wait for a lost server before they fail. */
  readonly reconnect_delay_seconds: number;
}

/**
 * `tap`: QEMU has an open TAP device, at this file descriptor. `user`: QEMU's user network, which forwards this port of the host's
 * loopback to the guest's port 22; `restricted`, the guest makes no connections. `none`: the card is there, without a network.
 */
export type VmNetworkSpec =
  | { readonly kind: 'tap'; readonly fd: number }
  | { readonly kind: 'user'; readonly ssh_forward_port: number; readonly restricted: boolean }
  | { readonly kind: 'none' };

export interface VmSpec {
  readonly instance_id: string;
  readonly vm_id: string;
  readonly cpus: number;
  readonly memory_mib: number;
  readonly accel: Accelerator;
  readonly machine?: Machine;
  readonly kernel_path: string;
  readonly initrd_path: string;
  /** A DNS name. The guest sets it at boot. */
  readonly hostname: string;
  readonly overlay_path: string;
  /** The image, a raw file, which unallocated clusters of a complete overlay read from. */
  readonly base_path: string;
  readonly lazy?: LazyBacking;
  /** Folder of the VM's sockets. It belongs to the VM's user until QEMU listens. */
  readonly runtime_dir: string;
  readonly network: VmNetworkSpec;
  /** Additional words of the kernel's command line. */
  readonly kernel_parameters?: readonly string[];
  /** An SSH host key for a disk that has none: the public key's file, then the private key's. QEMU reads them at its start. */
  readonly host_key_path?: string;
  /** Resume from memory instead of booting: from a stream to this socket, or as the monitor tells QEMU later. */
  readonly incoming?: { readonly socket_path: string } | 'told';
}

export interface VmSockets {
  readonly qmp: string;
  readonly agent: string;
  readonly console: string;
  /** The port of the execs' supervisor. */
  readonly execs: string;
  /** For `-incoming` with a stream. */
  readonly incoming: string;
}

/** The sockets that QEMU listens on, in the VM's runtime folder. */
export function vmSockets(runtime_dir: string): VmSockets {
  return {
    qmp: join(runtime_dir, 'qmp.sock'),
    agent: join(runtime_dir, 'agent.sock'),
    console: join(runtime_dir, 'console.sock'),
    execs: join(runtime_dir, 'execs.sock'),
    incoming: join(runtime_dir, 'resume.sock'),
  };
}

/** sockaddr_un holds 108 bytes, the last of them NUL (unix(7)). */
const MAX_SOCKET_PATH_BYTES = 107;
const HOSTNAME =
  /^(?=.{1,253}$)[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$/;
const KERNEL_WORD = /^[\x21\x23-\x7e]{1,256}$/;

export function absolute(path: string, what: string): string {
  assert(path.startsWith('/') && !/[\0\n]/.test(path), `${what} must be an absolute path`);
  return path;
}

function inRange(value: number, low: number, high: number, what: string): void {
  assert(Number.isInteger(value) && value >= low && value <= high, `${what} must be ${low} to ${high}`);
}

/** @throws InvariantError for an invalid description */
export function checkSpec(spec: VmSpec): void {
  assert(isId('inst', spec.instance_id), 'instance_id is not an instance id');
  assert(isId('vm', spec.vm_id), 'vm_id is not a VM id');
  inRange(spec.cpus, 1, 64, 'cpus');
  inRange(spec.memory_mib, 64, 1 << 20, 'memory_mib');
  if (spec.network.kind === 'user') inRange(spec.network.ssh_forward_port, 1, 65_535, 'ssh_forward_port');
  assert(HOSTNAME.test(spec.hostname), 'hostname is not a host name');
  for (const word of spec.kernel_parameters ?? []) {
    assert(KERNEL_WORD.test(word), 'a kernel parameter must be one printable word without quotes');
  }
  absolute(spec.kernel_path, 'kernel_path');
  absolute(spec.initrd_path, 'initrd_path');
  absolute(spec.overlay_path, 'overlay_path');
  absolute(spec.runtime_dir, 'runtime_dir');
  const socket_paths: string[] = Object.values(vmSockets(spec.runtime_dir));
  absolute(spec.base_path, 'base_path');
  if (spec.lazy) socket_paths.push(absolute(spec.lazy.socket_path, 'lazy.socket_path'));
  if (typeof spec.incoming === 'object')
    socket_paths.push(absolute(spec.incoming.socket_path, 'incoming.socket_path'));
  for (const path of socket_paths) {
    assert(
      Buffer.byteLength(path) <= MAX_SOCKET_PATH_BYTES,
      `socket path ${path} is longer than ${MAX_SOCKET_PATH_BYTES} bytes: choose a shorter data folder`,
    );
  }
}
