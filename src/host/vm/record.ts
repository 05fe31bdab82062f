/**
 * Reads and writes what a restarted agent must know to take over a running VM: `vms/<instance id>/record.json`,
 * replaced durably at each change; and `loss.json`, a loss that was not reported yet. The VM's user may traverse the
 * folder, and cannot write to it.
 */
import { chmod, mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Consistency, MemoryRef, Reason, SegmentRef } from '../../protocol/types.ts';
import { errnoOf } from '../../shared/errors.ts';
import { type InstanceId, isId, type VmId } from '../../shared/ids.ts';
import { syncFolder, writeFileDurably } from '../durable-file.ts';
import type { VmNetwork } from '../network/addresses.ts';
import type { ProcessIdentity } from '../qemu/qemu-process.ts';

/** A flush whose data is complete: what an adopting agent needs to finish it. */
export interface FlushRecord {
  readonly job_id: string;
  readonly generation: number;
  /** The head's id once this is committed. */
  readonly commit_id: string;
  /** All durable in the store. */
  readonly segments: readonly SegmentRef[];
  readonly consistency: Consistency;
  readonly dirty_bytes: number;
}

/** A port of the guest, and the `host:port` of this machine that leads to it. */
export interface PortForward {
  readonly port: number;
  readonly address: string;
}

export interface VmRecord {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly boot: number;
  readonly epoch: number;
  readonly image: string;
  readonly image_version: string;
  readonly network: VmNetwork;
  /** The open ways into the guest's other ports. Absent: none. */
  readonly port_forwards?: readonly PortForward[];
  readonly identity: ProcessIdentity;
  /** False until the guest's first instruction. Such a machine is ended, not adopted. */
  readonly released: boolean;
  /** A guest of this boot has run, in this machine or an earlier one: the overlay's writes beyond the head are this boot's. */
  readonly ran: boolean;
  /** The overlay holds writes that no bitmap marks: the next flush compares all of it. */
  readonly full_compare: boolean;
  /** The head that the dirty bitmap counts from (its `commit_id`). */
  readonly counts_from: string;
  /** A freeze was sent and its thaw is not confirmed. */
  readonly frozen: boolean;
  /** Set while the overlay has our export below it. An adopting agent serves it first. */
  readonly lazy: { readonly size_bytes: number; readonly base_path: string } | null;
  readonly reboots_done: number;
  /** The guest may be paused for a suspend; without `memory` it must continue. */
  readonly suspending?: boolean;
  /** The guest is paused for good: its memory and disk of this instant are durable. */
  readonly memory?: MemoryRef | null;
  /** The guest was started from saved memory, and has not answered yet. */
  readonly resuming?: boolean;
  /** The name as which this boot consumes its saved memory, written before it does. An agent that finds it may go on under it. */
  readonly consumer?: string | null;
  /** Why this boot does not resume from its memory. */
  readonly cold?: Reason | null;
  /**
   * The guest was started from a template, and has not answered yet; if it never does, the VM boots. Not awake: it may not know
   * its instance and nobody has used it, so such a machine is ended, not adopted.
   */
  readonly template?: { readonly key: string; readonly awake: boolean } | null;
  readonly flush: FlushRecord | null;
}

export interface VmFolder {
  readonly folder: string;
  /** The sockets. The folder belongs to the VM's user until QEMU listens. */
  readonly runtime: string;
  readonly record: string;
  /** What is lost and not reported yet (`UnreportedLoss`). */
  readonly loss: string;
  /** The id of the last VM of which the control plane has told because it did not know it. */
  readonly unknown_vm: string;
  readonly qemu_log: string;
  readonly console_log: string;
}

export function vmFolder(vms_dir: string, instance_id: InstanceId): VmFolder {
  const folder = join(vms_dir, instance_id);
  return {
    folder,
    runtime: join(folder, 'run'),
    record: join(folder, 'record.json'),
    loss: join(folder, 'loss.json'),
    unknown_vm: join(folder, 'unknown-vm'),
    qemu_log: join(folder, 'qemu.log'),
    console_log: join(folder, 'console.log'),
  };
}

export async function makeVmFolder({ folder }: VmFolder): Promise<void> {
  await mkdir(folder, { recursive: true });
  // The umask applies to mkdir's mode, and the VM's user must traverse the folder.
  await chmod(folder, 0o711);
}

export async function writeRecord(folder: VmFolder, record: VmRecord): Promise<void> {
  await writeFileDurably(folder.record, `${JSON.stringify(record)}\n`);
}

/** null: there is none, or it is damaged. It is replaced whole, so a partial record means damage. */
export async function readRecord(folder: VmFolder): Promise<VmRecord | null> {
  try {
    return JSON.parse(await readFile(folder.record, 'utf8')) as VmRecord;
  } catch (error) {
    if (error instanceof SyntaxError || errnoOf(error) === 'ENOENT') return null;
    throw error;
  }
}

export async function removeRecord(folder: VmFolder): Promise<void> {
  await rm(folder.record, { force: true });
}

/** Instances with a folder on this host. */
export async function listVmFolders(vms_dir: string): Promise<InstanceId[]> {
  const names = await readdir(vms_dir);
  return names.filter((name): name is InstanceId => isId('inst', name));
}

/**
 * `loss.json` of a VM's folder: what is lost of an instance's disk or memory, until the control plane has told its owner.
 *
 * Invariant: the file is written durably before the loss is final (an overlay set aside, a guest started without its memory), and
 * removed only after a report of it counted. So an agent that dies in between leaves the report to the next one.
 */
export interface UnreportedLoss {
  readonly reason: Reason;
  /** Of the boot that found it. */
  readonly epoch: number;
  /** A copy on this host has what is lost. No other host knows of this loss. */
  readonly set_aside: boolean;
}

/** null: there is none, or the file is damaged. It is replaced whole. */
export async function readLoss(folder: VmFolder): Promise<UnreportedLoss | null> {
  try {
    return JSON.parse(await readFile(folder.loss, 'utf8')) as UnreportedLoss;
  } catch (error) {
    if (error instanceof SyntaxError || errnoOf(error) === 'ENOENT') return null;
    throw error;
  }
}

export async function writeLoss(folder: VmFolder, loss: UnreportedLoss): Promise<void> {
  await makeVmFolder(folder);
  // An older power cut must not take the folder away.
  await syncFolder(dirname(folder.folder));
  await writeFileDurably(folder.loss, `${JSON.stringify(loss)}\n`);
}

export async function removeLoss(folder: VmFolder): Promise<void> {
  await rm(folder.loss, { force: true });
}
