/**
 * What must be known of a machine after our own death: `vms/<instance id>/record.json`, replaced durably at each
 * change, in a folder that the VM's user may pass through and not write.
 */
import { chmod, mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Consistency, MemoryRef, Reason, SegmentRef } from '../../agent-api/types.ts';
import { errnoOf } from '../../lib/errors.ts';
import { type InstanceId, isId, type VmId } from '../../lib/ids.ts';
import { writeFileDurably } from '../vm/durable-file.ts';
import type { ProcessIdentity } from '../vm/process-identity.ts';

/** A flush under way when its job's data is complete: what adoption needs to finish it. */
export interface FlushRecord {
  readonly job_id: string;
  readonly generation: number;
  /** What the head is called once this is committed. */
  readonly commit_id: string;
  /** Set once all are durable in the store, just before the commit. */
  readonly segments: readonly SegmentRef[] | null;
  readonly consistency: Consistency;
  readonly dirty_bytes: number;
}

export interface VmRecord {
  readonly instance_id: InstanceId;
  readonly vm_id: VmId;
  readonly boot: number;
  readonly epoch: number;
  /** Absent in records of before images were stored: its commits do not ask for its image. */
  readonly image?: string;
  readonly image_version: string;
  readonly ssh_forward_port: number;
  readonly identity: ProcessIdentity;
  /** False until the guest's first instruction: a machine found so is not worth adopting. */
  readonly released: boolean;
  /** A guest of this boot has run, in this machine or one before it: what the overlay holds beyond the head is this boot's. */
  readonly ran: boolean;
  /** The overlay holds writes that no bitmap knows: the next flush looks at all of it. */
  readonly full_compare: boolean;
  /** The head that the dirty bitmap counts from (its `commit_id`). */
  readonly counts_from: string;
  /** A freeze was sent and its thaw is not confirmed. */
  readonly frozen: boolean;
  /** Set while the overlay has our own export below it: what an adopting agent must serve before all else. */
  readonly lazy: { readonly size_bytes: number; readonly base_path: string } | null;
  readonly reboots_done: number;
  /** The guest may stand still for a suspend; without `memory` it is to run on. */
  readonly suspending?: boolean;
  /** The guest stands still for good: memory and disk of this instant are durable. */
  readonly memory?: MemoryRef | null;
  /** The guest goes on from saved memory, and has not been found to answer yet. */
  readonly resuming?: boolean;
  /** Why this boot does not go on from the memory that it was given. */
  readonly cold?: Reason | null;
  /** Why this boot, or one before it, could not continue where the last ended, until that is said. */
  readonly recovered?: Reason | null;
  /**
   * The boot goes on from a template, and was not found to come up yet: should it not, it boots. Not awake, its guest may not
   * know which instance it is, so nobody has been in it: a machine found so is not worth adopting.
   */
  readonly template?: { readonly key: string; readonly awake: boolean } | null;
  readonly flush: FlushRecord | null;
}

export interface VmFolder {
  readonly folder: string;
  /** The sockets; the VM's own until QEMU listens. */
  readonly runtime: string;
  readonly record: string;
  readonly qemu_log: string;
  readonly console_log: string;
}

export function vmFolder(vms_dir: string, instance_id: InstanceId): VmFolder {
  const folder = join(vms_dir, instance_id);
  return {
    folder,
    runtime: join(folder, 'run'),
    record: join(folder, 'record.json'),
    qemu_log: join(folder, 'qemu.log'),
    console_log: join(folder, 'console.log'),
  };
}

export async function makeVmFolder({ folder }: VmFolder): Promise<void> {
  await mkdir(folder, { recursive: true });
  // mkdir's mode passes through the umask; the VM's user must pass through the folder.
  await chmod(folder, 0o711);
}

export async function writeRecord(folder: VmFolder, record: VmRecord): Promise<void> {
  await writeFileDurably(folder.record, `${JSON.stringify(record)}\n`);
}

/** The record; null when there is none, or none that can be read (it is replaced whole, so that means damage). */
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

/** Instances that have a folder here. */
export async function listVmFolders(vms_dir: string): Promise<InstanceId[]> {
  const names = await readdir(vms_dir);
  return names.filter((name): name is InstanceId => isId('inst', name));
}
