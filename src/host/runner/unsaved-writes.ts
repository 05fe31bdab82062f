/**
 * Whether the overlay of an instance without a machine holds writes beyond the head, and whether a boot's writes are lost. The
 * runner inspects the overlay before it decides: a stop saves such writes, and a loss is reported once.
 */
import type { Assignment, Reason } from '../../protocol/types.ts';
import type { HostContext } from '../host-context.ts';
import type { VmRecord } from '../machine/record.ts';
import { FencedError } from '../overlay/commit-outcome.ts';
import { type DiskState, InstanceGoneError } from '../overlay/disk-state.ts';
import { isLost, type RanSince, type SaidOfWrites, writesOf } from '../overlay/judge-overlay.ts';
import { type NoteLoss, recoveredFrom, setAside } from '../overlay/prepare-overlay.ts';
import { removeOverlay } from '../vm/overlay.ts';

export interface UnsavedWrites {
  /** The overlay holds writes beyond the head. */
  readonly unsaved: boolean;
  /** The head that has everything that guests have written; null: none has, or it is not known. */
  readonly saved_by: string | null;
  /** Why writes of a boot are lost; null: none are. */
  readonly lost: Reason | null;
}

/** `last`: the record of the last machine here. `noteLoss` is called before an overlay is set aside. */
export async function findUnsavedWrites(
  {
    context,
    disk,
    noteLoss,
  }: {
    readonly context: Pick<HostContext, 'log'> & { readonly paths: Pick<HostContext['paths'], 'overlays'> };
    readonly disk: DiskState;
    readonly noteLoss: NoteLoss;
  },
  assignment: Pick<Assignment, 'vm_id' | 'epoch'> & RanSince & SaidOfWrites,
  last: VmRecord | null,
): Promise<UnsavedWrites> {
  const { instance_id } = disk;
  try {
    const { commit_id, generation } = await disk.refresh(assignment.epoch);
    const verdict = await disk.judgeOverlay(assignment);
    const writes = writesOf(assignment, last?.vm_id === assignment.vm_id && last.ran);
    // What a boot with memory does with its overlay depends on whether the memory is consumed.
    if (verdict.use === 'unsaved' && !assignment.suspended)
      return { unsaved: true, saved_by: null, lost: null };
    const recovered = recoveredFrom(generation, 'the next one', verdict);
    // The head is all that the guest wrote, and its memory matches that head alone.
    if (verdict.use === 'unsaved' && verdict.otherwise === 'remove')
      await removeOverlay(context.paths.overlays, instance_id);
    else if (verdict.use === 'unsaved') {
      await noteLoss(recovered, true);
      await setAside({ context, instance_id, disk });
      return { unsaved: false, saved_by: null, lost: recovered };
    } else if (isLost(verdict, writes)) {
      await noteLoss(recovered, false);
      return { unsaved: false, saved_by: null, lost: recovered };
    }
    return { unsaved: false, saved_by: commit_id, lost: null };
  } catch (error) {
    // The next step finds the same, and reports it.
    if (!(error instanceof InstanceGoneError || error instanceof FencedError)) throw error;
    return { unsaved: false, saved_by: null, lost: null };
  }
}
