/**
 * `<instance id>.json` beside an overlay: the head that the overlay last equalled, and the VM that has opened it since.
 * `judge-overlay.ts` decides by it how the overlay can be used.
 *
 * Invariant: a write replaces it atomically and durably.
 */
import { readFile } from 'node:fs/promises';
import { assert } from '../../shared/assert.ts';
import { errnoOf } from '../../shared/errors.ts';
import type { VmId } from '../../shared/ids.ts';
import { writeFileDurably } from '../durable-file.ts';
import { overlayPaths, spaceOr } from './overlay-files.ts';

/**
 * What unallocated clusters of an overlay read as. `yes`: the image, because the overlay has all blocks of the head. `no`: the
 * head. `unverified`: the head, until a check shows that the overlay has all its blocks, because its last VM was killed.
 */
export const FILLED = ['yes', 'no', 'unverified'] as const;
export type Filled = (typeof FILLED)[number];

export interface OverlaySidecar {
  /** The head that the overlay's clean blocks equal. */
  readonly generation: number;
  readonly commit_id: string;
  /** The VM that last opened the overlay, and the epoch of its placement. */
  readonly vm_id: VmId;
  readonly placement: number;
  /** The overlay equals that head, is durable, and no VM has it open. */
  readonly clean: boolean;
  /**
   * A sync of the overlay has failed. The system then forgets what it could not write, so a later sync that succeeds proves nothing:
   * the overlay is never clean again.
   */
  readonly sync_failed: boolean;
  readonly filled: Filled;
  /** The image that it is based on. A head without generations does not name it. */
  readonly image_version: string | null;
}

/** Replaces the sidecar durably. Rejects with NoSpaceError or the system error. */
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

/** The sidecar; `none`: no file; `damaged`: not a valid sidecar. */
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
  const { generation, commit_id, vm_id, placement, clean, sync_failed, filled, image_version } =
    value as Record<string, unknown>;
  const named = typeof commit_id === 'string' && typeof vm_id === 'string';
  const version = image_version === null || typeof image_version === 'string';
  const state =
    typeof clean === 'boolean' && typeof sync_failed === 'boolean' && FILLED.includes(filled as Filled);
  return isCount(generation) && isCount(placement) && named && version && state;
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
