/**
 * Decides what to do with an overlay that no QEMU has open, for every way in which file, sidecar and head can disagree. Pure.
 * `docs/persistence.md` has it as a table; the test beside this goes through all combinations.
 *
 * - An overlay is used only if it holds all that the head holds, and no other host has had the disk since.
 * - An overlay with writes that the database does not know is never removed: it may be the only copy that a receipt covers.
 * - A torn overlay is never used.
 */
import type { LineageResponse } from '../../agent-api/types.ts';
import type { OverlaySidecar } from '../vm/sidecar.ts';

export interface FoundOverlay {
  /** `damaged`: the header is not one that Berth's QEMU writes. */
  readonly file: 'none' | 'damaged' | 'whole';
  readonly sidecar: OverlaySidecar | 'none' | 'damaged';
}

/** `clean`: equals the head. `unsaved`: the head and writes after it. `none`: not used, the disk comes from the head. */
export type OverlayUse = 'clean' | 'unsaved' | 'none';

export interface OverlayVerdict {
  readonly use: OverlayUse;
  /** What happens to files that are not used. `remove`: their writes beyond the head are not needed. */
  readonly otherwise: 'remove' | 'set aside';
}

const REMOVE: OverlayVerdict = { use: 'none', otherwise: 'remove' };
const SET_ASIDE: OverlayVerdict = { use: 'none', otherwise: 'set aside' };

/**
 * `own_since`: since this epoch every placement was on this host. `lineage`: what the database knows of the head that the sidecar
 * names, and of its VM; not needed if the overlay is clean and of the head.
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
    // Another host has had the disk since: these writes are lost, and that was reported.
    if (!own) return REMOVE;
    // The database has lost the VM that wrote it.
    if (!lineage.known) return SET_ASIDE;
    return file === 'whole' ? { use: 'unsaved', otherwise: 'remove' } : SET_ASIDE;
  }
  // The sidecar's VM has committed the current head, or started from it.
  if (lineage.continues && own)
    return file === 'whole' ? { use: 'unsaved', otherwise: 'set aside' } : SET_ASIDE;
  return lineage.known ? REMOVE : SET_ASIDE;
}

/** What the last record and the control plane say about a boot's writes. */
export interface BootWrites {
  /** All writes of the guest are durable: it is suspended, or has not been resumed yet. */
  readonly all_durable: boolean;
  /** A guest of this boot has run here, or the boot before failed. */
  readonly may_have_written: boolean;
}

/** Whether a boot's writes beyond the head are lost, which must be reported. */
export function isLost({ use, otherwise }: OverlayVerdict, writes: BootWrites): boolean {
  if (use !== 'none' || writes.all_durable) return false;
  return otherwise === 'set aside' || writes.may_have_written;
}
