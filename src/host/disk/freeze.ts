/**
 * Freezing and thawing a guest's file systems, through its agent, which may not answer.
 *
 * Invariant: after every freeze, thaws are sent until the agent confirms `thawed`. A frozen guest is as good as hung.
 */
import { backoffMs, pause } from '../../shared/retry.ts';
import type { Machine } from '../vm/machine.ts';

/** How long a guest may take to freeze. After that it is flushed unfrozen. */
export const FREEZE_MS = 3_000;
const THAW_MS = 10_000;

/** Thaws under way, at most one per machine. */
const thawing = new WeakMap<Machine, Promise<void>>();

/** A thaw is not confirmed yet. */
export function isThawing(machine: Machine): boolean {
  return thawing.has(machine);
}

/** False: the guest did not answer in time, and may be frozen or not. */
export async function freeze(machine: Machine): Promise<boolean> {
  // A pending thaw could end a new freeze too early.
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

/** Thaws. After the timeout the thaw continues in the background, so that a hanging agent delays neither a flush nor a stop. */
export async function thaw(machine: Machine): Promise<void> {
  const enough = new AbortController();
  await Promise.race([beginThaw(machine), pause(THAW_MS, enough.signal)]);
  enough.abort();
}

/** Thaws in the background, for a guest that did not answer the freeze. */
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
 * Retries without a limit. A reset or the machine's end thaws too. A freeze may be executed after it has timed out, so a thaw
 * that found nothing frozen does not count before the agent reports `thawed`.
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
