/**
 * Freezing a guest's file systems, and thawing them: the guest's agent does both, or is silent.
 * Invariant: whatever became of a freeze, a thaw goes on until the agent says `thawed`; a frozen guest is as good as hung.
 */
import { backoffMs, pause } from '../../lib/backoff.ts';
import type { Machine } from '../machine/machine.ts';

/** How long a guest may take to answer before it is flushed as it is. */
export const FREEZE_MS = 3_000;
const THAW_MS = 10_000;

/** Thaws that are not confirmed yet, at most one a machine. */
const thawing = new WeakMap<Machine, Promise<void>>();

/** A thaw is not confirmed: the guest does not answer. */
export function isThawing(machine: Machine): boolean {
  return thawing.has(machine);
}

/** False when the guest did not answer in time, and its file systems may be frozen or not. */
export async function freeze(machine: Machine): Promise<boolean> {
  // A thaw that is still to be confirmed could end a new freeze before its time.
  if (isThawing(machine) || machine.agent.is_cut_off) return false;
  await machine.update({ frozen: true });
  try {
    const is_frozen = (await machine.agent.fsfreeze(FREEZE_MS)) > 0;
    if (is_frozen) await machine.disk.noteFrozen();
    return is_frozen;
  } catch {
    return false;
  }
}

/**
 * Thaws. A guest whose agent hangs, or is made to, must hold up neither its flush nor its stop: past its time the
 * thaw goes on by itself.
 */
export async function thaw(machine: Machine): Promise<void> {
  const enough = new AbortController();
  await Promise.race([beginThaw(machine), pause(THAW_MS, enough.signal)]);
  enough.abort();
}

/** Thaws beside what comes next: of a guest that did not answer the freeze either. */
export function thawBeside(machine: Machine): void {
  beginThaw(machine).catch(() => undefined);
}

function beginThaw(machine: Machine): Promise<void> {
  const confirmed =
    thawing.get(machine) ?? thawUntilConfirmed(machine).finally(() => thawing.delete(machine));
  thawing.set(machine, confirmed);
  return confirmed;
}

/**
 * However long it takes. Ends without it only when the guest was reset or is gone, which thaws too. The freeze may come
 * after its own time-out, so a thaw that found nothing is not trusted before the agent says `thawed`.
 */
async function thawUntilConfirmed(machine: Machine): Promise<void> {
  const { resets } = machine;
  for (let attempt = 0; machine.resets === resets && !machine.gone && !machine.broken; attempt++) {
    try {
      await machine.agent.thaw({ timeout_ms: THAW_MS });
      if ((await machine.agent.fsfreezeStatus({ timeout_ms: THAW_MS })) === 'thawed') break;
    } catch {
      await pause(backoffMs(attempt, 100, 2_000));
    }
  }
  if (machine.gone) return;
  await machine.update({ frozen: false });
  await machine.disk.noteThawed();
}
