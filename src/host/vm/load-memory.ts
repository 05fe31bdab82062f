/** Loads saved memory into a QEMU that waits for it, if hardware and disk generation match. */
import { readMemory } from '../../disk-format/memory-format.ts';
import type { MemoryRef } from '../../protocol/types.ts';
import type { DiskState } from '../disk/disk-state.ts';
import { type HostContext, networkKind } from '../host-context.ts';
import { differenceOf, hardwareTraits, qemuVersion } from '../qemu/machine-traits.ts';
import { loadStream } from '../qemu/migration.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import { vmSockets } from '../qemu/vm-spec.ts';
import type { VmFolder } from './record.ts';

/** Less than the time that a start may take. */
const LOAD_MS = 480_000;

/** The memory is of other hardware, or of another generation of the disk. */
export class MemoryUnfitError extends Error {
  override name = 'MemoryUnfitError';
}

export interface VmSize {
  readonly cpus: number;
  readonly memory_mib: number;
}

/** The QEMU that the memory is loaded into. */
export interface Inlet {
  readonly context: HostContext;
  readonly disk: DiskState;
  readonly qmp: QmpClient;
  readonly folder: VmFolder;
  readonly signal: AbortSignal;
}

/** The checks that need no QEMU. @throws MemoryUnfitError */
export function checkFit(
  { context, spec }: Pick<Inlet, 'context'> & { readonly spec: VmSize },
  memory: MemoryRef,
  disk: { readonly generation: number; readonly image_version: string },
): void {
  const { cpus, memory_mib } = spec;
  const { image_version } = disk;
  const difference = differenceOf(
    memory.traits,
    hardwareTraits({ cpus, memory_mib, accel: context.accel, image_version, network: networkKind(context) }),
  );
  if (difference) throw new MemoryUnfitError(difference);
  if (disk.generation !== memory.generation)
    throw new MemoryUnfitError(`its disk is at generation ${disk.generation}, not ${memory.generation}`);
}

export function incomingSocket({ runtime }: VmFolder): string {
  return vmSockets(runtime).incoming;
}

/** The guest is paused afterwards, as it was when it was saved. */
export async function loadMemory(
  { context, disk, qmp, folder, signal }: Inlet,
  memory: MemoryRef,
): Promise<void> {
  const difference = differenceOf(memory.traits, { qemu: await qemuVersion(qmp) });
  if (difference) throw new MemoryUnfitError(difference);
  const { key, parts, key_id, salt, epoch, generation } = memory;
  const encryption = { key_id, salt: Buffer.from(salt, 'base64') };
  const place = { disk_id: disk.instance_id, epoch, generation };
  const inlet = {
    path: incomingSocket(folder),
    qemu_log: folder.qemu_log,
    timeout_ms: LOAD_MS,
    signal,
  };
  await loadStream(qmp, inlet, (within) =>
    readMemory({ key, parts, encryption }, { store: context.store, place, keys: disk.keys, signal: within }),
  );
}
