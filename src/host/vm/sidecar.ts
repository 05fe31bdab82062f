/**
 * `<instance id>.json` beside an overlay: which head the overlay was last known to equal, and who has written it since.
 * What it is worth is decided in `runner/judge-overlay.ts`.
 *
 * Invariant: it is replaced whole and is on the disk when a write returns.
 */
import { readFile } from 'node:fs/promises';
import { assert } from '../../lib/assert.ts';
import { errnoOf } from '../../lib/errors.ts';
import type { VmId } from '../../lib/ids.ts';
import { writeFileDurably } from './durable-file.ts';
import { overlayPaths, spaceOr } from './overlay.ts';

/**
 * What unwritten clusters of an overlay are. `yes`: the image's, all of the head is in it. `no`: the head's, it was begun
 * empty. `unverified`: it should hold all of the head, but its last VM was killed; the head's until that was looked at.
 */
export const FILLED = ['yes', 'no', 'unverified'] as const;
export type Filled = (typeof FILLED)[number];

export interface OverlaySidecar {
  /** The head that the overlay's clean blocks are equal to. */
  readonly generation: number;
  readonly commit_id: string;
  /** The VM that last had the overlay open, and the epoch of its placement. */
  readonly vm_id: VmId;
  readonly placement: number;
  /** True when the overlay holds nothing beyond that head, is on the disk, and no VM has it open. */
  readonly clean: boolean;
  readonly filled: Filled;
  /** What it is a delta of. The head does not say so before its first generation. */
  readonly image_version: string | null;
}

/** Replaces the sidecar; on return it is on the disk. Rejects with NoSpaceError or the system error. */
export async function writeSidecar(
  folder: string,
  instance_id: string,
  sidecar: OverlaySidecar,
): Promise<void> {
  assert(isSidecar(sidecar), 'a sidecar has all of its fields');
  const { sidecar: path } = overlayPaths(folder, instance_id);
  try {
    await writeFileDurably(path, `${JSON.stringify(sidecar)}\n`);
  } catch (error) {
    throw spaceOr(error, `cannot write the sidecar of ${instance_id}`);
  }
}

/** The sidecar; `none`: there is no file; `damaged`: what there is cannot be one. */
export async function readSidecar(
  folder: string,
  instance_id: string,
): Promise<OverlaySidecar | 'none' | 'damaged'> {
  const { sidecar: path } = overlayPaths(folder, instance_id);
  try {
    const value: unknown = JSON.parse(await readFile(path, 'utf8'));
    return isSidecar(value) ? value : 'damaged';
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return 'none';
    if (error instanceof SyntaxError) return 'damaged';
    throw error;
  }
}

function isSidecar(value: unknown): value is OverlaySidecar {
  if (typeof value !== 'object' || value === null) return false;
  const { generation, commit_id, vm_id, placement, clean, filled, image_version } = value as Record<
    string,
    unknown
  >;
  const named = typeof commit_id === 'string' && typeof vm_id === 'string';
  const version = image_version === null || typeof image_version === 'string';
  const state = typeof clean === 'boolean' && FILLED.includes(filled as Filled);
  return isCount(generation) && isCount(placement) && named && version && state;
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
