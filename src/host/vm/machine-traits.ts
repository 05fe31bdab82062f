/** What two machines must have in common for one to go on from the other's memory. */
import { createHash } from 'node:crypto';
import { cpus } from 'node:os';
import type { MachineTraits } from '../../agent-api/types.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { type Accelerator, qemuArguments } from './qemu-command.ts';

export interface MachineSize {
  readonly cpus: number;
  readonly memory_mib: number;
  readonly accel: Accelerator;
  readonly image_version: string;
}

/** All but QEMU's own version, which a running one tells. */
export function hardwareTraits(size: MachineSize): Omit<MachineTraits, 'qemu'> {
  return {
    hardware: createHash('sha256')
      .update(JSON.stringify(hardwareArguments(size)))
      .digest('hex'),
    image_version: size.image_version,
    // KVM's guests see the host's CPU, and have chosen their code by it.
    host_cpu: size.accel === 'kvm' ? (cpus()[0]?.model ?? '') : '',
  };
}

export async function qemuVersion(qmp: QmpClient): Promise<string> {
  const { qemu, package: build } = await qmp.execute('query-version', undefined);
  return `${qemu.major}.${qemu.minor}.${qemu.micro} ${build}`.trim();
}

/** What differs, for people; null when nothing does. */
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

/** As they are for every VM of that size: what differs between VMs is no hardware. */
function hardwareArguments({ cpus: count, memory_mib, accel }: MachineSize): string[] {
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
    ...{ runtime_dir: '/run', ssh_forward_port: 1 },
  });
}
