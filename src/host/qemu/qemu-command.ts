/**
 * Defines `VmSpec`, the description of a VM, and makes QEMU's arguments from it. Pure.
 *
 * Invariants:
 * - No value of the description can add an option: blockdevs and devices are JSON, commas in other key=value lists are
 *   doubled (QEMU's escape), and values on the kernel's command line are single words without quotes.
 * - `-name guest=<instance id>` comes first, so that the arguments identify the process.
 * - QEMU starts paused (`-S`), so the guest runs only after the dirty bitmap exists and `cont` is sent.
 *
 * {@link NODES} and {@link DEVICES} are the names of QEMU's block nodes and devices, which flushes and others use.
 */

import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { assert } from '../../shared/assert.ts';
import { isId } from '../../shared/ids.ts';
import type { BlockdevOptions } from './qmp-client.ts';

export const ACCELERATORS = ['kvm', 'tcg'] as const;
export type Accelerator = (typeof ACCELERATORS)[number];

/**
 * microvm: virtio-mmio, no PCI, boots faster, needs KVM's clock. q35: the same devices on PCI, and an HPET. Under TCG it is
 * the only machine with a correct guest clock (docs/adr/0021-qemu-and-machine-types.md).
 */
const MACHINE_TYPES = ['microvm', 'q35'] as const;
export type MachineType = (typeof MACHINE_TYPES)[number];

export function machineFor(accel: Accelerator): MachineType {
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
  readonly machine?: MachineType;
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
function checkSpec(spec: VmSpec): void {
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

/**
 * Block nodes from the guest down: overlay (qcow2) on overlay-file, backed by base (raw) on base-file. An incomplete overlay
 * is backed by `lazy` instead: our NBD export, which includes the base image.
 */
export const NODES = {
  overlay: 'overlay',
  overlay_file: 'overlay-file',
  base: 'base',
  base_file: 'base-file',
  lazy: 'lazy',
} as const;
export const DEVICES = {
  disk: 'disk0',
  net: 'net0',
  agent_port: 'qga0',
  execs_port: 'execs0',
  panic: 'panic0',
} as const;

/**
 * QEMU's cache of translated code, which counts towards the VM's memory limit. Without a limit it grows to a gigabyte, and
 * a soft reboot takes up to 26 s; with 64 MiB it takes 4 to 5 s.
 */
export const TCG_CACHE_MIB = 64;

/**
 * On an emulated CPU the mitigations protect nothing. The kernel's timer test counts ticks in a few milliseconds of real
 * time: on a busy host it finds none and panics.
 */
const TCG_KERNEL_WORDS = ['mitigations=off', 'no_timer_check'] as const;

/** x86's limit of COMMAND_LINE_SIZE. */
const MAX_KERNEL_COMMAND_LINE = 2047;

/**
 * The arguments of qemu-system-x86_64 7.2 or later, without the program's name. @throws InvariantError for an invalid
 * description: a relative path, a hostile hostname, a socket path over 107 bytes.
 */
export function qemuArguments(spec: VmSpec): string[] {
  checkSpec(spec);
  const machine = spec.machine ?? machineFor(spec.accel);
  return [
    '-name',
    `guest=${spec.instance_id}`,
    ...commonArguments(machine, spec.accel),
    '-S',
    '-sandbox',
    'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
    // shutdown=pause: the dirty bitmap survives the guest's power-off, and the last flush runs on a quiet disk.
    '-action',
    'shutdown=pause,reboot=reset,panic=pause',
    '-smp',
    `cpus=${spec.cpus}`,
    '-m',
    `size=${spec.memory_mib}M`,
    '-kernel',
    spec.kernel_path,
    '-initrd',
    spec.initrd_path,
    '-append',
    kernelCommandLine(spec),
    ...channelArguments(spec, machine),
    ...diskArguments(spec, machine),
    ...networkArguments(spec, machine),
    ...givenArguments(spec),
  ];
}

/**
 * The arguments that boot only the image's initramfs, to test the accelerator: it prints `berth-probe-ok` on the serial
 * line, which is QEMU's standard output, and powers off.
 */
export function probeArguments(probe: {
  readonly accel: Accelerator;
  readonly kernel_path: string;
  readonly initrd_path: string;
}): string[] {
  const tcg = probe.accel === 'tcg' ? TCG_KERNEL_WORDS : [];
  const words = ['console=ttyS0', 'panic=-1', 'berth.probe=1', ...tcg];
  return [
    '-name',
    'guest=berth-probe',
    ...commonArguments(machineFor(probe.accel), probe.accel),
    '-no-reboot',
    '-m',
    'size=256M',
    '-kernel',
    absolute(probe.kernel_path, 'kernel_path'),
    '-initrd',
    absolute(probe.initrd_path, 'initrd_path'),
    '-append',
    words.join(' '),
    '-chardev',
    'stdio,id=console,signal=off',
    '-serial',
    'chardev:console',
  ];
}

export function commonArguments(machine: MachineType, accel: Accelerator): string[] {
  return [
    '-no-user-config',
    '-nodefaults',
    '-display',
    'none',
    '-msg',
    'timestamp=on',
    '-machine',
    machine === 'microvm'
      ? 'microvm,acpi=on,rtc=on,usb=off,graphics=off'
      : 'q35,usb=off,smbus=off,sata=off,vmport=off,i8042=off,graphics=off,hpet=on',
    '-accel',
    accel === 'kvm' ? 'kvm' : `tcg,thread=multi,tb-size=${TCG_CACHE_MIB}`,
    '-cpu',
    // Under emulation, `rep movsb` (ERMS) is slower than plain loops, which costs a tenth of a boot. The fifth level of page
    // tables, which no guest needs, costs a twentieth.
    accel === 'kvm' ? 'host' : 'max,erms=off,la57=off',
    '-global',
    'virtio-mmio.force-legacy=false',
  ];
}

function givenArguments({ host_key_path: key, incoming }: VmSpec): string[] {
  if (key) return ['-fw_cfg', `name=opt/berth/host_key,file=${escapeCommas(absolute(key, 'host_key_path'))}`];
  if (!incoming) return [];
  return ['-incoming', incoming === 'told' ? 'defer' : `unix:${incoming.socket_path}`];
}

function channelArguments(spec: VmSpec, machine: MachineType): string[] {
  const sockets = vmSockets(spec.runtime_dir);
  const listen = (id: string, path: string): string[] => [
    '-chardev',
    `socket,id=${id},path=${escapeCommas(path)},server=on,wait=off`,
  ];
  return [
    ...listen('qmp', sockets.qmp),
    '-mon',
    'chardev=qmp,mode=control',
    ...listen('console', sockets.console),
    '-serial',
    'chardev:console',
    ...listen('agent', sockets.agent),
    ...device({ driver: onBus('virtio-serial', machine), id: 'serial0', max_ports: 3 }),
    ...device({
      driver: 'virtserialport',
      id: DEVICES.agent_port,
      bus: 'serial0.0',
      chardev: 'agent',
      name: 'org.qemu.guest_agent.0',
    }),
    ...listen('execs', sockets.execs),
    ...device({
      driver: 'virtserialport',
      id: DEVICES.execs_port,
      bus: 'serial0.0',
      chardev: 'execs',
      name: 'berth.execs',
    }),
    '-object',
    'rng-random,id=rng0,filename=/dev/urandom',
    ...device({ driver: onBus('virtio-rng', machine), rng: 'rng0' }),
    // Reports a kernel panic at once, by the guest's pvpanic driver.
    ...device({ driver: 'pvpanic', id: DEVICES.panic }),
  ];
}

/**
 * Options of the overlay:
 * - discard=unmap down to the file: blocks that the guest frees are freed on the local disk and flushed as zeroes;
 * - detect-zeroes=off: the packer detects zero blocks, which here would slow down every guest write;
 * - cache.direct=off: some file systems (tmpfs) refuse O_DIRECT, and the shared base profits from the page cache. Guest
 *   flushes still reach the disk, because cache.no-flush is off;
 * - werror=stop, rerror=stop: an I/O error of the host pauses the guest until `cont`; the guest never sees it.
 * File locks stay on `auto`, so no second QEMU opens the overlay for writing.
 */
function diskArguments(spec: VmSpec, machine: MachineType): string[] {
  return [
    ...blockdev({
      driver: 'file',
      'node-name': NODES.base_file,
      filename: spec.base_path,
      'read-only': true,
      cache: { direct: false, 'no-flush': false },
    }),
    ...blockdev({ driver: 'raw', 'node-name': NODES.base, file: NODES.base_file, 'read-only': true }),
    ...(spec.lazy ? blockdev(lazyNode(spec.lazy)) : []),
    ...blockdev({
      driver: 'file',
      'node-name': NODES.overlay_file,
      filename: spec.overlay_path,
      discard: 'unmap',
      cache: { direct: false, 'no-flush': false },
    }),
    ...blockdev(overlayNode(spec.lazy ? NODES.lazy : NODES.base)),
    ...device({
      driver: onBus('virtio-blk', machine),
      id: DEVICES.disk,
      drive: NODES.overlay,
      serial: 'berth-disk',
      werror: 'stop',
      rerror: 'stop',
    }),
  ];
}

/** All options of the overlay's node, because `blockdev-reopen` resets options that it is not given. */
export function overlayNode(backing: string): BlockdevOptions {
  return {
    driver: 'qcow2',
    'node-name': NODES.overlay,
    file: NODES.overlay_file,
    backing,
    discard: 'unmap',
    'detect-zeroes': 'off',
    cache: { direct: false, 'no-flush': false },
  };
}

function lazyNode(lazy: LazyBacking): BlockdevOptions {
  return {
    driver: 'nbd',
    'node-name': NODES.lazy,
    server: { type: 'unix', path: lazy.socket_path },
    export: lazy.export_name,
    'reconnect-delay': lazy.reconnect_delay_seconds,
    'read-only': true,
  };
}

function networkArguments(spec: VmSpec, machine: MachineType): string[] {
  return [
    '-netdev',
    netdev(spec.network),
    ...device({
      driver: onBus('virtio-net', machine),
      netdev: DEVICES.net,
      mac: macAddress(spec.instance_id),
      // The option ROM is for network boot, which is not used.
      ...(machine === 'q35' ? { romfile: '' } : {}),
    }),
  ];
}

function netdev(network: VmNetworkSpec): string {
  const id = `id=${DEVICES.net}`;
  if (network.kind === 'tap') return `tap,${id},fd=${network.fd}`;
  // A hub that nothing else is connected to. Unlike the user network it saves no state, which a machine with a TAP has not.
  if (network.kind === 'none') return `hubport,${id},hubid=0`;
  const restrict = network.restricted ? ',restrict=on' : '';
  return `user,${id},ipv6=off,hostfwd=tcp:127.0.0.1:${network.ssh_forward_port}-:22${restrict}`;
}

/** Words for the hardware, and words that identify instance and boot. */
export function kernelCommandLine(spec: VmSpec): string {
  const words = [
    'console=ttyS0',
    'quiet',
    'loglevel=4',
    // On microvm the default reboot jumps to the BIOS without a reset, and about one in three hangs there. A triple fault
    // works.
    ...((spec.machine ?? machineFor(spec.accel)) === 'microvm' ? ['reboot=t'] : []),
    // pvpanic reports panics. Before that driver is loaded, the machine resets after a second.
    'panic=1',
    ...(spec.accel === 'tcg' ? TCG_KERNEL_WORDS : []),
    `berth.hostname=${spec.hostname}`,
    // It tells a fork's guest that its disk was another instance's.
    `berth.instance=${spec.instance_id}`,
    `berth.vm=${spec.vm_id}`,
    ...(spec.kernel_parameters ?? []),
  ];
  const line = words.join(' ');
  assert(line.length <= MAX_KERNEL_COMMAND_LINE, 'the kernel command line is too long');
  return line;
}

/** The MAC address of an instance: locally administered, the same for all boots. Each VM has a network of its own. */
export function macAddress(instance_id: string): string {
  const digest = createHash('sha256').update(instance_id).digest();
  return `52:54:00:${[...digest.subarray(0, 3)].map((byte) => byte.toString(16).padStart(2, '0')).join(':')}`;
}

export function onBus(driver: string, machine: MachineType): string {
  return `${driver}-${machine === 'microvm' ? 'device' : 'pci'}`;
}

export function device(options: Record<string, unknown>): string[] {
  return ['-device', JSON.stringify(options)];
}

export function blockdev(options: BlockdevOptions): string[] {
  return ['-blockdev', JSON.stringify(options)];
}

/** QemuOpts' escape: a doubled comma is a literal comma. */
function escapeCommas(value: string): string {
  return value.replaceAll(',', ',,');
}
