/**
 * What an overlay that no QEMU has open is worth: every way in which file, sidecar and head can disagree, and what is done.
 * Pure. `docs/persistence.md` has it as a table; the test beside this goes through all combinations.
 *
 * - An overlay is used only if it holds all that the head holds, and no other host has had the disk since.
 * - One that holds what the database does not know of is never removed: it may be the only copy of what a receipt covers.
 * - What is torn is never used.
 */
import type { LineageResponse } from '../../agent-api/types.ts';
import type { OverlaySidecar } from '../vm/sidecar.ts';

export interface FoundOverlay {
  /** `damaged`: its header is not one that QEMU has left there. */
  readonly file: 'none' | 'damaged' | 'whole';
  readonly sidecar: OverlaySidecar | 'none' | 'damaged';
}

/** `clean`: equal to the head. `unsaved`: all of the head and what was written after it. `none`: the disk comes from the head. */
export type OverlayUse = 'clean' | 'unsaved' | 'none';

export interface OverlayVerdict {
  readonly use: OverlayUse;
  /** What becomes of the files where they are not used; `remove`: all that they hold beyond the head may go. */
  readonly otherwise: 'remove' | 'set aside';
}

const REMOVE: OverlayVerdict = { use: 'none', otherwise: 'remove' };
const SET_ASIDE: OverlayVerdict = { use: 'none', otherwise: 'set aside' };

/**
 * `own_since`: the first epoch since which every placement was on this host. `lineage`: what the database knows of the head
 * that the sidecar names, and of its VM; asked for but where the overlay is clean and of the head.
 */
export function judgeOverlay(
  { file, sidecar }: FoundOverlay,
  head: { readonly commit_id: string },
  own_since: number,
  lineage: LineageResponse,
): OverlayVerdict {
  if (file === 'none' || sidecar === 'none') return REMOVE;
  if (sidecar === 'damaged') return SET_ASIDE;
  const own = sidecar.placement >= own_since;
  if (sidecar.commit_id === head.commit_id) {
    if (sidecar.clean) return file === 'whole' ? { use: 'clean', otherwise: 'remove' } : REMOVE;
    // Another host has had the disk: what is here was given up, and that was said.
    if (!own) return REMOVE;
    // Written in a time that the database has lost, though it began from this head.
    if (!lineage.known) return SET_ASIDE;
    return file === 'whole' ? { use: 'unsaved', otherwise: 'remove' } : SET_ASIDE;
  }
  // Its VM has committed this head, before or after the one that the sidecar names, or began from it.
  if (lineage.continues && own)
    return file === 'whole' ? { use: 'unsaved', otherwise: 'set aside' } : SET_ASIDE;
  return lineage.known ? REMOVE : SET_ASIDE;
}

/** What the last boot's record and the control plane say of a boot's writes. */
export interface BootWrites {
  /** Head, or head and memory, are all that its guest has written: it is suspended, or has not gone on yet. */
  readonly all_durable: boolean;
  /** A guest of this boot has run here, or the boot before failed. */
  readonly may_have_written: boolean;
}

/** Whether what a boot has written past the head is lost, which must be said. */
export function isLost({ use, otherwise }: OverlayVerdict, writes: BootWrites): boolean {
  if (use !== 'none' || writes.all_durable) return false;
  return otherwise === 'set aside' || writes.may_have_written;
}
