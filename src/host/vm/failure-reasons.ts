/**
 * Turns an error on a host, or the unexpected end of a machine, into the reason that users see: a code, and a message
 * that shows neither paths of this host nor the object store's location.
 */
import { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { Reason, VmReasonCode } from '../../protocol/types.ts';
import { messageOf } from '../../shared/errors.ts';
import { FencedError } from '../disk/disk-state.ts';
import { NoSpaceError } from '../disk/overlay-files.ts';
import { ImageError } from '../images/host-images.ts';
import { consoleTail } from './console-log.ts';

/** The public reason of a failure; `otherwise`: the code of an error that has none. */
export function reasonFor<Code extends string>(error: unknown, otherwise: Code): Reason<Code | VmReasonCode> {
  const message = sentence(withoutPath(error));
  if (error instanceof SegmentCorruptError) return { code: 'segment_corrupt', message };
  if (error instanceof NoSpaceError) return { code: 'disk_full', message };
  if (error instanceof ImageError) return { code: 'image_missing', message };
  // The message of the error names the store's location.
  if (error instanceof ObjectStoreUnavailableError)
    return {
      code: 'object_store_unavailable',
      message: sentence(`the object store cannot be used: ${error.reason}`),
    };
  if (error instanceof ControlPlaneUnavailable) return { code: 'control_plane_away', message };
  if (error instanceof FencedError) return { code: 'fenced', message };
  return { code: otherwise, message };
}

/** The reason of a machine that ended without our request. */
export function deathReason(
  { damage, panicked }: { readonly damage: Error | null; readonly panicked: boolean },
  console_log: string,
): Reason {
  if (damage) return reasonFor(damage, 'vm_died');
  if (!panicked) {
    return {
      code: 'vm_died',
      message: 'The VM process ended by itself; its host keeps its writes.',
    };
  }
  return {
    code: 'guest_panicked',
    // The registers that follow help few readers.
    message: `The guest's kernel panicked. ${consoleTail(console_log, /Kernel panic/)}`.trim(),
  };
}

/** A system error's text, `ENOENT: no such file or directory`, without the call and the host's path. */
function withoutPath(error: unknown): string {
  const message = messageOf(error);
  return error instanceof Error && 'syscall' in error ? (message.split(', ')[0] ?? message) : message;
}

function sentence(text: string): string {
  const upper = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
}
