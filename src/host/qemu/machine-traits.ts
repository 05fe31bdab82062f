/** The properties that two machines must share for one to resume from the other's memory. */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpus } from 'node:os';
import { promisify } from 'node:util';
import type { MachineTraits } from '../../protocol/types.ts';
import { qemuArguments } from './qemu-command.ts';
import type { QmpClient } from './qmp-client.ts';
import type { Accelerator, VmNetworkSpec } from './vm-spec.ts';

const run = promisify(execFile);
const VERSION_MS = 10_000;

export interface MachineSize {
  readonly cpus: number;
  readonly memory_mib: number;
  readonly accel: Accelerator;
  readonly image_version: string;
  /** A network card with a TAP device saves other memory than one in QEMU's user network. */
  readonly network: Exclude<VmNetworkSpec['kind'], 'none'>;
}

/** All except QEMU's version, which a running QEMU reports. */
export function hardwareTraits(size: MachineSize): Omit<MachineTraits, 'qemu'> {
  return {
    hardware: createHash('sha256')
      .update(JSON.stringify(hardwareArguments(size)))
      .digest('hex'),
    image_version: size.image_version,
    // A KVM guest sees the host's CPU and has chosen code for it.
    host_cpu: size.accel === 'kvm' ? (cpus()[0]?.model ?? '') : '',
  };
}

export async function qemuVersion(qmp: QmpClient): Promise<string> {
  const { qemu, package: build } = await qmp.execute('query-version', undefined);
  return `${qemu.major}.${qemu.minor}.${qemu.micro} ${build}`.trim();
}

/**
 * What hosts share that can resume each other's VMs, as a hash: QEMU, accelerator, kind of network and, under KVM, the CPU. A
 * hint for placements; before memory is loaded, its own traits are compared. Null: QEMU does not say its version.
 */
export async function machineHash(
  qemu_binary: string,
  { accel, network }: Pick<MachineSize, 'accel' | 'network'>,
): Promise<string | null> {
  const { stdout } = await run(qemu_binary, ['--version'], { timeout: VERSION_MS }).catch(() => ({
    stdout: '',
  }));
  const version = stdout.split('\n')[0] ?? '';
  if (version === '') return null;
  const traits = hardwareTraits({ cpus: 1, memory_mib: 512, accel, network, image_version: '' });
  return createHash('sha256')
    .update(JSON.stringify([version, traits.hardware, traits.host_cpu]))
    .digest('hex');
}

/** The difference, for people; null: none. */
export function differenceOf(saved: MachineTraits, now: Partial<MachineTraits>): string | null {
  const names: Record<keyof MachineTraits, string> = {
    qemu: 'QEMU is another',
    hardware: 'the virtual hardware is another',
    image_version: 'the image is another',
    host_cpu: 'the CPU of the host is another',
  };
  for (const [trait, text] of Object.entries(names)) {
    const value = now[trait as keyof MachineTraits];
    if (value !== undefined && value !== saved[trait as keyof MachineTraits]) return text;
  }
  return null;
}

/** The hardware arguments, which are the same for every VM of that size. */
function hardwareArguments({ cpus: count, memory_mib, accel, network }: MachineSize): string[] {
  const nobody = '0'.repeat(26);
  return qemuArguments({
    ...{
      instance_id: `inst_${nobody}`,
      vm_id: `vm_${nobody}`,
      hostname: 'none',
      cpus: count,
      memory_mib,
      accel,
    },
    ...{ kernel_path: '/kernel', initrd_path: '/initrd', overlay_path: '/overlay', base_path: '/base' },
    runtime_dir: '/run',
    network:
      network === 'tap' ? { kind: 'tap', fd: 0 } : { kind: 'user', ssh_forward_port: 1, restricted: false },
  });
}
