/**
 * `loss.json` of a VM's folder: what is lost of an instance's disk or memory, until the control plane has told its owner.
 *
 * Invariant: the file is written durably before the loss is final (an overlay set aside, a guest started without its memory), and
 * removed only after a report of it counted. So an agent that dies in between leaves the report to the next one.
 */
import { readFile, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { Reason } from '../../protocol/types.ts';
import { errnoOf } from '../../shared/errors.ts';
import { syncFolder, writeFileDurably } from '../vm/durable-file.ts';
import { makeVmFolder, type VmFolder } from './record.ts';

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
