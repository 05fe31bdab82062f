/**
 * Whether the overlay of an instance without a machine holds writes beyond the head, and whether a boot's writes are lost. The
 * runner inspects the overlay before it decides: a stop saves such writes, and a loss is reported once.
 */
import type { Assignment, Reason } from '../../agent-api/types.ts';
import type { HostContext } from '../host-context.ts';
import type { VmRecord } from '../machine/record.ts';
import { FencedError } from '../overlay/commit-outcome.ts';
import { type DiskState, InstanceGoneError } from '../overlay/disk-state.ts';
import { type BootWrites, isLost, type OverlayVerdict } from '../overlay/judge-overlay.ts';
import { recoveredFrom, SET_ASIDE } from '../overlay/prepare-overlay.ts';
import { removeOverlay, setAsideOverlay } from '../vm/overlay.ts';

export interface UnsavedWrites {
  /** The overlay holds writes beyond the head. */
  readonly unsaved: boolean;
  /** Why writes of a boot are lost; null: none are. */
  readonly lost: Reason | null;
}

/** `last`: the record of the last machine here. */
export async function findUnsavedWrites(
  context: HostContext,
  disk: DiskState,
  assignment: Assignment,
  last: VmRecord | null,
): Promise<UnsavedWrites> {
  try {
    await disk.refresh(assignment.epoch);
    const verdict = await disk.judgeOverlay(assignment.own_since);
    const writes = writesOf(assignment, last);
    const unsaved = verdict.use === 'unsaved';
    // The head is all that the guest wrote. What a boot with memory does with its overlay depends on whether the memory is consumed.
    if (unsaved && assignment.suspended) {
      return { unsaved: false, lost: await dropOverlay(context, disk, verdict) };
    }
    const lost = isLost(verdict, writes)
      ? recoveredFrom(disk.head.generation, 'the next one', verdict)
      : null;
    return { unsaved, lost };
  } catch (error) {
    // The next step finds the same, and reports it.
    if (!(error instanceof InstanceGoneError || error instanceof FencedError)) throw error;
    return { unsaved: false, lost: null };
  }
}

async function dropOverlay(
  { paths, log }: HostContext,
  disk: DiskState,
  verdict: OverlayVerdict,
): Promise<Reason | null> {
  if (verdict.otherwise === 'remove') {
    await removeOverlay(paths.overlays, disk.instance_id);
    return null;
  }
  const kept = await setAsideOverlay(paths.overlays, disk.instance_id);
  log.error({ kept }, SET_ASIDE);
  return recoveredFrom(disk.head.generation, 'the next one', verdict);
}

function writesOf(
  { vm_id, suspended, resume, previous_failed }: Assignment,
  last: VmRecord | null,
): BootWrites {
  const ran = last?.vm_id === vm_id && last.ran;
  return {
    all_durable: suspended || (resume !== null && !ran),
    may_have_written: ran || previous_failed,
  };
}
