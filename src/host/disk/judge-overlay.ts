/**
 * Decides what happens to an overlay that no QEMU has open: it is used, removed, or set aside. The decision covers
 * every combination of file, sidecar and head; docs/persistence.md has it as a table, and the test beside this file
 * tries all of them. Pure.
 *
 * - An overlay is used only if it has everything that the head has, and everything that a later guest may have written.
 * - An overlay with writes that the database does not know is never removed: it may be the only copy of what a receipt
 *   covers, or of what its guest has synced.
 * - A damaged overlay is never used.
 */
import type { Assignment, LineageResponse } from '../../protocol/types.ts';
import type { OverlaySidecar } from './overlay-files.ts';

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
  /**
   * Writes that are lost with it. `none`: the overlay, or by its word the head, has everything that guests have written. `some`:
   * surely. `perhaps`: if a guest has written and not saved since the head.
   */
  readonly loss: 'none' | 'perhaps' | 'some';
}

/** Which boots may have run their guest, of the assignment. */
export type RanSince = Pick<Assignment, 'own_since' | 'last_ran_epoch'>;

const REMOVE: OverlayVerdict = { use: 'none', otherwise: 'remove', loss: 'perhaps' };
const SET_ASIDE: OverlayVerdict = { use: 'none', otherwise: 'set aside', loss: 'some' };
/** Others have run since: they, or the control plane, have told of the loss of these writes. */
const OVERTAKEN: OverlayVerdict = { use: 'none', otherwise: 'set aside', loss: 'perhaps' };

/**
 * `lineage`: what the database knows of the head that the sidecar names, and of its VM; not needed if the overlay is clean and of
 * the head.
 */
export function judgeOverlay(
  { file, sidecar }: FoundOverlay,
  head: { readonly commit_id: string },
  { own_since, last_ran_epoch }: RanSince,
  lineage: LineageResponse,
): OverlayVerdict {
  if (sidecar === 'none') return REMOVE;
  if (sidecar === 'damaged') return file === 'none' ? REMOVE : SET_ASIDE;
  // Else a guest has run since without this overlay: on another host, or here before the host's files were replaced by older ones.
  const newest = sidecar.placement >= Math.max(own_since, last_ran_epoch);
  if (sidecar.clean && sidecar.commit_id === head.commit_id)
    return {
      use: file === 'whole' ? 'clean' : 'none',
      otherwise: 'remove',
      loss: newest ? 'none' : 'perhaps',
    };
  if (file === 'none') return REMOVE;
  const usable = newest && file === 'whole';
  if (sidecar.commit_id === head.commit_id) {
    // The database has lost the VM that wrote it.
    if (!lineage.known) return SET_ASIDE;
    return usable ? { use: 'unsaved', otherwise: 'remove', loss: 'none' } : newest ? SET_ASIDE : OVERTAKEN;
  }
  // The sidecar's VM has committed the current head, or started from it.
  if (lineage.continues && newest)
    return usable ? { use: 'unsaved', otherwise: 'set aside', loss: 'none' } : SET_ASIDE;
  if (!lineage.known) return SET_ASIDE;
  return lineage.continues ? OVERTAKEN : REMOVE;
}

/** What the last record and the control plane say about a boot's writes. */
export interface BootWrites {
  /** All writes of the guest are durable: it is suspended, or has not been resumed yet. */
  readonly all_durable: boolean;
  /** A guest of this boot may have run, or the boot before failed. */
  readonly may_have_written: boolean;
}

/** What an assignment says of them. */
export type SaidOfWrites = Pick<Assignment, 'suspended' | 'resume' | 'previous_failed' | 'guest_ran'>;

/** `ran`: this host knows that a guest of this boot has run. */
export function writesOf(
  { suspended, resume, previous_failed, guest_ran }: SaidOfWrites,
  ran: boolean,
): BootWrites {
  return {
    all_durable: suspended || (resume !== null && !ran),
    may_have_written: ran || guest_ran || previous_failed,
  };
}

/** Whether a boot's writes beyond the head are lost, which must be reported. */
export function isLost(
  verdict: Pick<OverlayVerdict, 'loss'>,
  { all_durable, may_have_written }: BootWrites,
): boolean {
  if (all_durable) return false;
  return verdict.loss === 'some' || (verdict.loss === 'perhaps' && may_have_written);
}

export function isSetAside({ use, otherwise }: Pick<OverlayVerdict, 'use' | 'otherwise'>): boolean {
  return use === 'none' && otherwise === 'set aside';
}
