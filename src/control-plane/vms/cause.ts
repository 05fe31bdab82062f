/** What a VM's change was made for, and by whom, for the event of its completion. Pure. */
import type { VmReasonCode } from '../../protocol/reasons.ts';
import { isId } from '../../shared/ids.ts';
import type { VmRow } from './store.ts';

export const CAUSES = [
  'start_requested',
  'woken',
  'restart_on_failure',
  'restart_requested',
  'guest_reboot',
  'suspend_requested',
  'stop_requested',
  'idle',
  'host_drain',
  'guest_poweroff',
] as const satisfies readonly VmReasonCode[];
export type CauseCode = (typeof CAUSES)[number];

export interface Cause {
  readonly code: CauseCode;
  /** The person or service account that asked for it; else the host or `system`. */
  readonly actor: string;
}

/** @param vm as it was before the change @returns null: unknown */
export function causeOf({
  state,
  reason_code,
  reason_actor,
  move,
}: Pick<VmRow, 'state' | 'reason_code' | 'reason_actor' | 'move'>): Cause | null {
  const code = CAUSES.find((each) => each === reason_code);
  if (reason_actor === null) return null;
  if (code !== undefined) return { code, actor: reason_actor };
  // A stop whose final flush fails says so as its reason, and keeps its actor.
  if (state !== 'stopping') return null;
  return { code: move === null ? stopBy(reason_actor) : 'host_drain', actor: reason_actor };
}

function stopBy(actor: string): CauseCode {
  if (isId('host', actor)) return 'guest_poweroff';
  return actor === 'system' ? 'idle' : 'stop_requested';
}
