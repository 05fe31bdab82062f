/** Waits for conditions of a whole installation, with a deadline. `untilWorks` treats a failure as "not yet". */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';

/** Conditions usually hold within seconds; a busy machine may take much longer. */
const PATIENCE_MS = 120_000;
const SHORTEST_PAUSE_MS = 20;
/** Most conditions are requests, so a long wait asks less often. It ends at most a fiftieth later. */
const PAUSE_OF_WAITED = 1 / 50;

export interface Patience {
  readonly timeout_ms?: number;
  /** Default: 20 at first, and more in a long wait. To be given for a state that soon passes. */
  readonly every_ms?: number;
}

/** The first value of `condition` that is neither undefined, null nor false; fails naming `what` at the deadline. */
export async function until<T>(
  what: string,
  condition: () => T | Promise<T>,
  { timeout_ms = PATIENCE_MS, every_ms }: Patience = {},
): Promise<Exclude<T, undefined | null | false>> {
  const began = performance.now();
  for (;;) {
    const value = await condition();
    if (value !== undefined && value !== null && value !== false) {
      return value as Exclude<T, undefined | null | false>;
    }
    const waited_ms = performance.now() - began;
    assert(waited_ms < timeout_ms, `not within ${timeout_ms} ms: ${what}`);
    await sleep(every_ms ?? Math.max(SHORTEST_PAUSE_MS, waited_ms * PAUSE_OF_WAITED));
  }
}

/** Waits for the next hour or minute (UTC) if less than `margin_ms` of this one is left, for what counts by them. */
export async function awayFromTurnOf(
  period_ms: number,
  { margin_ms }: { readonly margin_ms: number },
): Promise<void> {
  const left_ms = period_ms - (Date.now() % period_ms);
  if (left_ms < margin_ms) await sleep(left_ms + SHORTEST_PAUSE_MS);
}

/** Like {@link until}, but treats a rejection as "not yet". At the deadline it fails with the last one. */
export async function untilWorks<T>(
  what: string,
  work: () => Promise<T>,
  patience: Patience = {},
): Promise<T> {
  let last: unknown;
  const attempt = async () => {
    try {
      return { value: await work() };
    } catch (error) {
      last = error;
      return undefined;
    }
  };
  try {
    return (await until(what, attempt, patience)).value;
  } catch (error) {
    throw new Error(`${what}: ${String(last)}`, { cause: error });
  }
}
