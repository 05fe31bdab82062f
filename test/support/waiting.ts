/** Waiting on a condition of a whole installation, never on time: with a deadline of one's own, and through failures. */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';

/** What is waited for comes within a second or two; a machine that does much else may take very much longer. */
const PATIENCE_MS = 120_000;

export interface Patience {
  readonly timeout_ms?: number;
  readonly every_ms?: number;
}

/** The first value of `condition` that is neither undefined, null nor false; fails naming `what` at the deadline. */
export async function until<T>(
  what: string,
  condition: () => T | Promise<T>,
  { timeout_ms = PATIENCE_MS, every_ms = 20 }: Patience = {},
): Promise<Exclude<T, undefined | null | false>> {
  const deadline = performance.now() + timeout_ms;
  for (;;) {
    const value = await condition();
    if (value !== undefined && value !== null && value !== false) {
      return value as Exclude<T, undefined | null | false>;
    }
    assert(performance.now() < deadline, `not within ${timeout_ms} ms: ${what}`);
    await sleep(every_ms);
  }
}

/** As {@link until}, taking a rejection for "not yet"; the last one is told at the deadline. */
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
